//! The cases under criterion, which keeps a baseline between runs: `cargo bench -- FILTER`.

use criterion::{criterion_group, criterion_main, Criterion};
use versus::side::both;

fn versus(c: &mut Criterion) {
    let mut sides = both().unwrap_or_else(|why| panic!("{why}"));
    for case in sides[0].cases().to_vec() {
        let mut group = c.benchmark_group(&case);
        for (name, side) in ["ours", "candle-core 0.11.1"].into_iter().zip(&mut sides) {
            let mut made = false;
            group.bench_function(name, |b| {
                b.iter_custom(|runs| {
                    // Inputs are made only for benches that pass the filter.
                    let ready = if made { Ok(()) } else { side.make(&case) };
                    made = true;
                    let taken = ready.and_then(|()| side.run(runs));
                    taken.unwrap_or_else(|why| panic!("{case}, {name}: {why}"))
                })
            });
        }
        group.finish();
    }
}

criterion_group!(benches, versus);
criterion_main!(benches);
