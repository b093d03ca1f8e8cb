"""Folders of labelled images in the formats that they are published in."""
