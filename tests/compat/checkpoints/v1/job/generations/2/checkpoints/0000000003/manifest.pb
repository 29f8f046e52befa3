
penstockmanifest"î
	
job	
jobè‡ùÀÁÄ‚ è‡ùÀÁÄ‚(2Á

everythingU
Gjob/generations/2/checkpoints/0000000003/operator-everything-0.metadata -kş•"®‹uU
Gjob/generations/2/checkpoints/0000000003/operator-everything-1.metadata¼*½ÊxóSEÓã"Ì)ÎA¦ºçóÌ­