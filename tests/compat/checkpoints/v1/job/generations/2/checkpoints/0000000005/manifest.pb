
penstockmanifest"î
	
job	
jobè‡ùÀÁÄ‚ è‡ùÀÁÄ‚(2Á

everythingU
Gjob/generations/2/checkpoints/0000000005/operator-everything-0.metadata£2aCÓS‚‘U
Gjob/generations/2/checkpoints/0000000005/operator-everything-1.metadata,iì"¨U—%x"Ì)5«Fy=ä