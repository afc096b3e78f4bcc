"""Commands as bytes and as objects: codec, codes, bodies. No socket, no loop, no broker's rule."""
