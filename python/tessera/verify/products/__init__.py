"""Random problems of products, dense, grouped and block-sparse."""
