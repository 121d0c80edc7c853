"""How Highwater is run: the local stack, and the images and manifests for elsewhere."""
