//! The table of work over crates.io's crates.

fn main() -> std::io::Result<()> {
    versus::serve::serve()
}
