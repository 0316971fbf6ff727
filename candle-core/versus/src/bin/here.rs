//! The table of work over this repository's crates.

fn main() -> std::io::Result<()> {
    versus::serve::serve()
}
