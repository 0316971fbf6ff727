//! The cases under criterion, which keeps a baseline between runs: `cargo bench -- FILTER`.

use criterion::{criterion_group, criterion_main, Criterion};

fn versus(c: &mut Criterion) {
    for pair in versus::pairs(&[]) {
        let mut group = c.benchmark_group(&pair.name);
        for (side, make) in [("ours", &pair.ours), ("candle-core 0.11.1", &pair.upstream)] {
            let mut work = None;
            // Inputs are made only for the benches that the filter lets run.
            group.bench_function(side, |b| b.iter(work.get_or_insert_with(make)));
        }
        group.finish();
    }
}

criterion_group!(benches, versus);
criterion_main!(benches);
