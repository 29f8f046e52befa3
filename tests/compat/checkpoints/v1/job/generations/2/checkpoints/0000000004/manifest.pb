
penstockmanifest"î
	
job	
jobè‡ùÀÁÄ‚ è‡ùÀÁÄ‚(2Á

everythingU
Gjob/generations/2/checkpoints/0000000004/operator-everything-0.metadataÃ2°N6áAJÄ³U
Gjob/generations/2/checkpoints/0000000004/operator-everything-1.metadataç*ˆ†³³J“Eû"Ì)KÉgÚA8?®