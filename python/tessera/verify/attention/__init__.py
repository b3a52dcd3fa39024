"""Random problems of attention."""
