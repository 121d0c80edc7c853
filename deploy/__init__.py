"""Running Highwater: the local stack, images and manifests."""
