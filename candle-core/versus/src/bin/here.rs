//! Serves the benchmark cases with this repository's crates.

fn main() -> std::io::Result<()> {
    versus::serve::serve()
}
