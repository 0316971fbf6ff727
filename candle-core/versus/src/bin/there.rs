//! Serves the benchmark cases with crates.io's crates.

fn main() -> std::io::Result<()> {
    versus::serve::serve()
}
