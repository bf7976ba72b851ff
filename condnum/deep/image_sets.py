"""Names that the audit imports from here; they live in `condnum.data.images`."""

from condnum.data.images import images_of as images_of
from condnum.data.images import open_images as open_images
