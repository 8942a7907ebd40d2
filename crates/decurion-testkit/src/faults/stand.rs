//! What the rows of this matrix have in common.
