
penstockmanifest"†

pipeline-v1
pipeline-v1€”àÓ€»ƒ €ˆÓµşºƒ(2º
rowsW
Ipipeline-v1/generations/1/checkpoints/0000000006/operator-rows-0.metadataºÌÕ¢8–ğ„W
Ipipeline-v1/generations/1/checkpoints/0000000006/operator-rows-1.metadataÏù°YÔO2ß
	looked-up\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-looked-up-0.metadatašÆâ³¿qC\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-looked-up-1.metadata¤¦0
Ì¼8×"À±öºƒ	rows.main2%
select-1"€ûá„öºƒlooked-up.main2İ
answersZ
Lpipeline-v1/generations/1/checkpoints/0000000006/operator-answers-0.metadata‡€+µÊõ~Z
Lpipeline-v1/generations/1/checkpoints/0000000006/operator-answers-1.metadata‰Ş…™ÓØ_Ÿ"€ûá„öºƒselect-1.main2$
select-2"€ûá„öºƒlooked-up.bad2ì
unanswerable_
Qpipeline-v1/generations/1/checkpoints/0000000003/operator-unanswerable-0.metadataŒ|¯5«}D_
Qpipeline-v1/generations/1/checkpoints/0000000005/operator-unanswerable-1.metadataûøY¾kı¶"€ûá„öºƒselect-2.main2)
hot-combiner"€ûá„öºƒlooked-up.main2Õ
hotV
Hpipeline-v1/generations/1/checkpoints/0000000005/operator-hot-0.metadataµkOù¢u,Ï€V
Hpipeline-v1/generations/1/checkpoints/0000000005/operator-hot-1.metadata	ı¾üÃ¦"€ûá„öºƒhot-combiner.main2Ø
hot-outZ
Lpipeline-v1/generations/1/checkpoints/0000000006/operator-hot-out-0.metadata‡Îôk¦æuÆDZ
Lpipeline-v1/generations/1/checkpoints/0000000006/operator-hot-out-1.metadata‰¬#g#Û,÷"€ûá„öºƒhot.main2Ø
lateW
Ipipeline-v1/generations/1/checkpoints/0000000001/operator-late-0.metadata„CZNp›o½
W
Ipipeline-v1/generations/1/checkpoints/0000000001/operator-late-1.metadata†âOŸ²št"€ûá„öºƒhot-combiner.late2%
busy-combiner"À±öºƒ	rows.main2Ù
busyW
Ipipeline-v1/generations/1/checkpoints/0000000006/operator-busy-0.metadata–š_æ9¿%W
Ipipeline-v1/generations/1/checkpoints/0000000006/operator-busy-1.metadataÆ\HÅ¤À×"À±öºƒbusy-combiner.main2Ü
busy-out[
Mpipeline-v1/generations/1/checkpoints/0000000007/operator-busy-out-0.metadataˆ>òï•İ«0[
Mpipeline-v1/generations/1/checkpoints/0000000007/operator-busy-out-1.metadataŠäÂYÒİŸ—"À±öºƒ	busy.main2Ö
visitsY
Kpipeline-v1/generations/1/checkpoints/0000000006/operator-visits-0.metadataÃOÇÄä,l„“Y
Kpipeline-v1/generations/1/checkpoints/0000000006/operator-visits-1.metadata¼üÊìA¾`"À±öºƒ	rows.main2ä

visits-out]
Opipeline-v1/generations/1/checkpoints/0000000007/operator-visits-out-0.metadataŠ(èUè]
Opipeline-v1/generations/1/checkpoints/0000000007/operator-visits-out-1.metadataŒªí¼ˆÃ"À±öºƒvisits.main2!
	combine-1"À±öºƒ	rows.main2Ø
spentX
Jpipeline-v1/generations/1/checkpoints/0000000006/operator-spent-0.metadata”ƒVNï)X
Jpipeline-v1/generations/1/checkpoints/0000000006/operator-spent-1.metadataâ~íly!BÙ"À±öºƒcombine-1.main2à
	spent-out\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-spent-out-0.metadata‰`JİSwçw¨\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-spent-out-1.metadata‹ú=Û~E[ê"À±öºƒ
spent.main2ß
	reminders\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-reminders-0.metadataõ:•ûÕÇ†‹Á\
Npipeline-v1/generations/1/checkpoints/0000000007/operator-reminders-1.metadataş3MÔt¡ç«âP"À±öºƒ	rows.main2ğ
reminders-out`
Rpipeline-v1/generations/1/checkpoints/0000000007/operator-reminders-out-0.metadataÒNÙÊf¿ã`
Rpipeline-v1/generations/1/checkpoints/0000000007/operator-reminders-out-1.metadataÓÍ”3ó‚p‚"À±öºƒreminders.main)zªŸ÷}åš