"""Images become features, and regions of them."""
