//! The host from outside: guests as text, a backend in memory, and the program.

mod cli;
mod fake;
mod guests;
mod limits;
mod modules;
mod neighbours;
mod plumbing;
