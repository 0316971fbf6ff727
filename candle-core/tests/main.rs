mod agree;
mod indexing;
mod random;
mod reduce;
