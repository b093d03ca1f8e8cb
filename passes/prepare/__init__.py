"""What every transform runs first, so that layers and their sizes can be found."""
