//! Gradients.

mod cases;
mod gradcheck;
mod walk;
