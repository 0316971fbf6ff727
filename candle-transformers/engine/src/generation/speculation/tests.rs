//! Rows of a step, and caches after a wrong proposal.

use super::Drafter;
use crate::backend::CompletionRequest;
#[cfg(feature = "bench")]
use crate::WeightFormat;
#[cfg(feature = "bench")]
use candle_core::Tensor;
use candle_core::{DType, Device};

/// On the CPU a row of a step is bit for bit what a step of one token gives, so that a proposal cannot change what is chosen.
#[cfg(feature = "bench")]
#[test]
fn rows_of_a_step_are_those_of_single_steps() {
    use crate::bench::random;
    use crate::bench::shapes::ModelShape;
    use candle_core::quantized::GgmlDType;
    let blocks = [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K];
    let floats = [DType::F32, DType::BF16].map(|dtype| (WeightFormat::Dense(dtype), [2, 3, 4]));
    let blocks = blocks.map(|format| (WeightFormat::Blocks(format), [3, 9, 15]));
    for (format, counts) in floats.into_iter().chain(blocks) {
        let dtype = format.activations();
        let spec = random::spec(ModelShape::Demo, 80, format).unwrap();
        let model = random::model(&spec, format, [dtype; 2], &[Device::Cpu]).unwrap();
        let decoder = model.decoder();
        let ids = |from: usize, count: usize| {
            let ids = (from..from + count).map(|at| (at * 997 % 4000) as u32);
            Tensor::from_iter(ids, &Device::Cpu)
                .unwrap()
                .unsqueeze(0)
                .unwrap()
        };
        let mut state = decoder.new_slots(1).unwrap();
        let mut rows_of = |from: usize, count: usize| -> Vec<Vec<u32>> {
            state.cut_slot(0, from).unwrap();
            let rows = decoder
                .logits_of_slots(&ids(from, count), count, 0, &mut state)
                .unwrap();
            let rows = rows.squeeze(0).unwrap();
            let rows: Vec<Vec<f32>> = rows.to_vec2().unwrap();
            let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
            rows.into_iter().map(bits).collect()
        };
        let single: Vec<Vec<u32>> = (0..24).flat_map(|at| rows_of(at, 1)).collect();
        for count in counts {
            // After keys that came one by one or, the second time, several in a step.
            for from in [8, 6] {
                let found = rows_of(from, count);
                assert!(found == single[from..from + count], "{format:?}, {count}");
            }
        }
    }
}

/// A draft model continues from the prefix that it shares with a text, whether or not its last proposals were accepted.
#[test]
fn a_drafter_forgets_what_was_wrong() {
    let load = || {
        let files = crate::ModelFiles::open(&crate::ModelSource::Embedded).unwrap();
        crate::CandleBackend::load(files, "test", &Device::Cpu, DType::F32, &|_| {}).unwrap()
    };
    let model = load().with_draft(load(), 4).unwrap();
    let model = model.draft().unwrap();
    let request = CompletionRequest::default();
    let propose = |drafter: &mut Drafter<'_>, known: &[u32]| {
        let tokens = drafter
            .propose(known, 3, |at| request.draw_at(known.len() + at))
            .unwrap();
        let tokens: Vec<u32> = tokens.into_iter().map(|it| it.wait().unwrap()).collect();
        drafter.knows(&tokens);
        tokens
    };
    let mut drafter = Drafter::new(model).unwrap();
    let mut text = vec![0, 300, 301, 302];
    for right in [3, 1, 0, 2] {
        let found = propose(&mut drafter, &text);
        let expected = propose(&mut Drafter::new(model).unwrap(), &text);
        assert_eq!((found.len(), &found), (3, &expected));
        text.extend(&found[..right]);
        // The model's own token, which is another one.
        text.push(found.get(right).map_or(7, |token| token + 1) % 4000);
        let unread = drafter.unread(&text);
        assert_eq!(unread, if right == 3 { 2 } else { 1 }, "after {right}");
    }
    // Another text, and a token that it does not have.
    let found = propose(&mut drafter, &[0, 300, 9]);
    assert_eq!(
        found,
        propose(&mut Drafter::new(model).unwrap(), &[0, 300, 9])
    );
    assert!(propose(&mut drafter, &[0, 4096]).is_empty());
    assert_eq!(found, propose(&mut drafter, &[0, 300, 9]));
}
