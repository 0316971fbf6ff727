//! Texts that share a cache, with a slot each: a text's logits are the same as alone, independently of the others.

use candle_core::{test_device, DType, Device, IndexOp, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{Decoder, DecoderState, LayerSpec, MixerSpec};

use super::encoders::{assert_error, lacking};
use super::support::assert_close;

const VOCAB: usize = 61;
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn decoder(window: &str, device: &Device) -> Result<Decoder> {
    let json = format!(
        r#"{{"model_type": "mistral", "vocab_size": {VOCAB}, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1100, "sliding_window": {window}}}"#
    );
    let weights: VarBuilder = lacking(&[], DType::F32, device);
    Decoder::from_vb(config_spec(&json)?, weights)
}

fn text(seed: usize, len: usize) -> Vec<u32> {
    (0..len)
        .map(|i| ((7 * seed + 11 * i + i * i) % VOCAB) as u32)
        .collect()
}

fn ids(rows: &[&[u32]], device: &Device) -> Result<Tensor> {
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let padded = rows
        .iter()
        .flat_map(|row| (0..longest).map(|i| row.get(i).copied().unwrap_or(0)));
    Tensor::from_vec(padded.collect(), (rows.len(), longest), device)
}

/// The logits after a text, alone.
fn alone(decoder: &Decoder, text: &[u32]) -> Result<Tensor> {
    let ids = ids(&[text], decoder.device())?;
    decoder
        .next_logits(&ids, 0, &mut decoder.new_state())?
        .squeeze(0)
}

/// Runs pieces of texts in neighbouring slots, and compares each row with its whole text.
fn run(
    decoder: &Decoder,
    state: &mut DecoderState,
    first: usize,
    texts: &mut [Vec<u32>],
    pieces: &[Vec<u32>],
) -> Result<()> {
    let rows: Vec<&[u32]> = pieces.iter().map(Vec::as_slice).collect();
    let counts: Vec<usize> = pieces.iter().map(Vec::len).collect();
    let ids = ids(&rows, decoder.device())?;
    let logits = decoder.next_logits_of_slots(&ids, &counts, first, state)?;
    assert_eq!(logits.dims(), &[pieces.len(), VOCAB]);
    for (row, piece) in pieces.iter().enumerate() {
        let text = &mut texts[first + row];
        text.extend(piece);
        assert_eq!(state.lens()[first + row], text.len());
        if piece.is_empty() {
            continue;
        }
        assert_close(&logits.i(row)?, &alone(decoder, text)?, TOLERANCE);
    }
    Ok(())
}

fn texts_come_and_go(device: &Device) -> Result<()> {
    for window in ["null", "5"] {
        let decoder = decoder(window, device)?;
        let mut state = decoder.new_slots(4)?;
        let mut texts = vec![Vec::new(); 4];
        let texts = &mut texts[..];
        // A prompt by itself, a token of it with two other prompts, one of which is in pieces.
        run(&decoder, &mut state, 0, texts, &[text(1, 9)])?;
        run(
            &decoder,
            &mut state,
            0,
            texts,
            &[text(2, 1), text(3, 5), text(4, 12)],
        )?;
        run(&decoder, &mut state, 2, texts, &[text(5, 3)])?;
        // Past what was taken at first.
        run(&decoder, &mut state, 1, texts, &[text(6, 600)])?;
        run(
            &decoder,
            &mut state,
            0,
            texts,
            &[text(7, 1), text(8, 1), text(9, 1)],
        )?;
        // The first leaves, the last moves to its slot, and another gets the slot of the last.
        let len = state.lens()[2];
        state.copy_slot(2, 0, len)?;
        texts[0] = texts[2].clone();
        state.cut_slot(2, 0)?;
        texts[2].clear();
        run(&decoder, &mut state, 0, texts, &[text(1, 2)])?;
        run(&decoder, &mut state, 2, texts, &[text(2, 7), text(3, 1)])?;
        // Goes on from a part of another's.
        state.copy_slot(1, 3, 5)?;
        texts[3] = texts[1][..5].to_vec();
        run(&decoder, &mut state, 3, texts, &[text(4, 4)])?;
        state.cut_slot(3, 2)?;
        texts[3].truncate(2);
        run(
            &decoder,
            &mut state,
            0,
            texts,
            &[text(1, 1), text(2, 1), text(3, 1), text(4, 1)],
        )?;
        // A clone is independent.
        let mut other = state.clone();
        let mut others = texts.to_vec();
        run(&decoder, &mut other, 1, &mut others, &[text(9, 2)])?;
        run(&decoder, &mut state, 1, texts, &[text(8, 1)])?;
    }
    Ok(())
}
test_device!(texts_come_and_go);

/// Families of which some layers keep something else than keys and values: on a GPU one for each kind.
fn with_states(device: &Device) -> Result<Vec<(&'static str, Decoder)>> {
    let mut found = vec![];
    for (name, config) in super::families::CONFIGS {
        let spec = config_spec(config)?;
        let keys = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        let on_gpus = ["deepseek_v2", "lfm2", "qwen3_next", "falcon_h1"];
        if spec.layers.iter().all(keys) || !device.is_cpu() && !on_gpus.contains(name) {
            continue;
        }
        found.push((*name, super::families::decoder(config, DType::F32, device)?));
    }
    // A model without attention, first: it has nothing that can be taken back.
    found.sort_by_key(|(_, decoder)| decoder.slots_rewind());
    Ok(found)
}

fn texts_with_states_come_and_go(device: &Device) -> Result<()> {
    let all = with_states(device)?;
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    println!("{names:?}");
    assert!(names.len() >= 4, "{names:?}");
    for (name, decoder) in all {
        println!("{name}");
        let mut state = decoder.new_slots(4)?;
        let mut texts = vec![Vec::new(); 4];
        let texts = &mut texts[..];
        let mut step = |first, pieces: &[Vec<u32>], state: &mut DecoderState| {
            run(&decoder, state, first, texts, pieces)
        };
        // Prompts alone, in pieces, of one token in a step of others.
        step(0, &[text(1, 9)], &mut state)?;
        step(2, &[text(2, 5)], &mut state)?;
        step(2, &[text(3, 4)], &mut state)?;
        let one = |seed| text(seed, 1);
        step(0, &[one(2), one(3), one(4)], &mut state)?;
        step(0, &[one(5), one(6), one(7)], &mut state)?;
        // Another text's piece between two steps of the same three, then a step in which the middle one has no part, twice.
        step(3, &[text(4, 6)], &mut state)?;
        step(0, &[one(1), one(8), one(2)], &mut state)?;
        step(0, &[one(3), vec![], one(4)], &mut state)?;
        step(0, &[one(5), vec![], one(6)], &mut state)?;
        step(0, &[one(5), one(2), one(6), one(1)], &mut state)?;
        // Different numbers of tokens.
        step(1, &[text(6, 3), text(7, 1), text(8, 2)], &mut state)?;
        // A clone is independent.
        let mut other = state.clone();
        let mut others = texts.to_vec();
        run(&decoder, &mut other, 1, &mut others, &[text(9, 2)])?;
        // A slot gets another text.
        state.cut_slot(1, 0)?;
        texts[1].clear();
        run(&decoder, &mut state, 1, texts, &[text(9, 2)])?;
        let all = [one(1), one(2), one(3), one(4)];
        run(&decoder, &mut state, 0, texts, &all)?;
        run(&decoder, &mut other, 2, &mut others, &[one(5), one(6)])?;
        if decoder.slots_rewind() {
            state.copy_slot(0, 3, 5)?;
            texts[3] = texts[0][..5].to_vec();
            state.cut_slot(3, 2)?;
            texts[3].truncate(2);
            run(&decoder, &mut state, 3, texts, &[text(4, 4)])?;
        }
    }
    Ok(())
}
test_device!(texts_with_states_come_and_go);

/// Verifies three tokens after the text of a slot, and takes all but `kept` back.
fn propose(
    decoder: &Decoder,
    state: &mut DecoderState,
    slot: usize,
    held: &mut Vec<u32>,
    kept: usize,
) -> Result<()> {
    let piece = text(kept, 3);
    let ids = ids(&[&piece], decoder.device())?;
    let logits = decoder.logits_of_slots(&ids, 2, slot, state)?;
    assert_eq!(logits.dims(), &[1, 2, VOCAB]);
    for (row, read) in [2, 3].into_iter().enumerate() {
        let whole = [&held[..], &piece[..read]].concat();
        assert_close(&logits.i((0, row))?, &alone(decoder, &whole)?, TOLERANCE);
    }
    state.cut_slot(slot, held.len() + kept)?;
    held.extend(&piece[..kept]);
    Ok(())
}

/// The logits after a token of each of the first slots, by a step that a CUDA device must have recorded: one launch, with a few before and
/// after it.
fn recorded(decoder: &Decoder, rows: &[&[u32]], state: &mut DecoderState) -> Result<Tensor> {
    let ids = ids(rows, decoder.device())?;
    #[cfg(feature = "cuda")]
    let before = launches(decoder.device());
    let logits = decoder.next_logits_of_slots(&ids, &vec![1; rows.len()], 0, state)?;
    #[cfg(feature = "cuda")]
    {
        let count = launches(decoder.device()) - before;
        assert!(count <= 6, "{count} launches");
    }
    Ok(logits)
}

#[cfg(feature = "cuda")]
fn launches(device: &Device) -> u64 {
    match device {
        Device::Cuda(cuda) => cuda.stats().launches,
        _ => 0,
    }
}

/// Steps of the same shapes again and again, which a CUDA device records: also after a buffer has grown, a slot was cut and rows were left out.
fn steps_that_come_again(device: &Device) -> Result<()> {
    let decoder = decoder("null", device)?;
    let mut state = decoder.new_slots(3)?;
    let mut texts = vec![Vec::new(); 3];
    let texts = &mut texts[..];
    run(&decoder, &mut state, 0, texts, &[text(1, 20), text(2, 3)])?;
    for round in 0..2 {
        for step in 0..4 {
            let one = |row: usize| text(row + step, 1);
            run(&decoder, &mut state, 0, texts, &[one(0), one(1), one(2)])?;
            run(&decoder, &mut state, 1, texts, &[one(3)])?;
        }
        // Tokens that are proposed, of which some are taken back.
        for kept in [3, 1, 2] {
            propose(&decoder, &mut state, 2, &mut texts[2], kept)?;
        }
        if round == 0 {
            run(&decoder, &mut state, 0, texts, &[text(6, 600)])?;
        }
    }
    recorded(&decoder, &[&[1], &[2], &[3]], &mut state)?;
    let err = decoder.logits_of_slots(&ids(&[&[1, 2]], device)?, 3, 0, &mut state);
    assert_error(err, &["last 3 of 2"]);
    Ok(())
}
test_device!(steps_that_come_again);

const PAGE: usize = 16;

/// Texts in three slots, whose pages are apart.
struct Paged {
    decoder: Decoder,
    state: DecoderState,
    texts: [Vec<u32>; 3],
    /// The first page of each; every third one follows.
    pages: [u32; 3],
}

impl Paged {
    fn new(device: &Device) -> Result<Self> {
        let decoder = decoder("null", device)?;
        Ok(Self {
            state: decoder.new_paged_slots(3, 120, PAGE)?,
            decoder,
            texts: Default::default(),
            pages: [0, 1, 2],
        })
    }

    /// Gives a slot pages for what it has and `more`.
    fn grow(&mut self, slot: usize, more: usize) -> Result<()> {
        let held = self.texts[slot].len();
        let count = (held + more).div_ceil(PAGE) as u32;
        let pages = (0..count).map(|i| self.pages[slot] + 3 * i);
        let pages: Vec<u32> = pages.collect();
        self.state.set_pages(slot, &pages, held)
    }

    fn run(&mut self, first: usize, pieces: &[Vec<u32>]) -> Result<()> {
        for (row, piece) in pieces.iter().enumerate() {
            self.grow(first + row, piece.len())?;
        }
        run(
            &self.decoder,
            &mut self.state,
            first,
            &mut self.texts,
            pieces,
        )
    }

    /// A token of each slot, `count` times.
    fn steps(&mut self, count: usize) -> Result<()> {
        (0..count).try_for_each(|step| {
            let pieces: Vec<Vec<u32>> = (0..3).map(|row| text(row + step, 1)).collect();
            self.run(0, &pieces)
        })
    }

    /// Ends a slot's text; the next one has pages from `page` on.
    fn end(&mut self, slot: usize, page: u32) -> Result<()> {
        self.texts[slot].clear();
        self.pages[slot] = page;
        self.state.set_pages(slot, &[], 0)
    }
}

/// Steps over pages, whose table changes between the launches of one recording.
fn steps_over_pages(device: &Device) -> Result<()> {
    let mut slots = Paged::new(device)?;
    slots.run(0, &[text(1, 14), text(2, 3), text(3, 1)])?;
    // The first text gets its second page in the third step.
    slots.steps(4)?;
    slots.end(1, 100)?;
    slots.steps(2)?;
    for kept in [3, 1, 2] {
        slots.grow(2, 3)?;
        let Paged {
            decoder,
            state,
            texts,
            ..
        } = &mut slots;
        propose(decoder, state, 2, &mut texts[2], kept)?;
    }
    // Past the keys of the first recording, and back.
    slots.run(0, &[text(6, 492)])?;
    slots.steps(4)?;
    assert!(slots.texts[0].len() > 512);
    slots.end(0, 51)?;
    slots.steps(1)?;
    // Another state's text is longer than the rotary tables that the recording reads; others may have their memory then.
    let long = ids(&[&text(9, 1030)], device)?;
    let mut other = slots.decoder.new_slots(1)?;
    slots.decoder.forward_slots(&long, &[1030], 0, &mut other)?;
    let _others = (0..4)
        .map(|_| Tensor::ones((1024, 4), DType::F32, device))
        .collect::<Result<Vec<_>>>()?;
    // A row without a text.
    slots.end(0, 0)?;
    let rows: [&[u32]; 3] = [&[0], &[7], &[8]];
    slots.grow(1, 1)?;
    slots.grow(2, 1)?;
    let logits = recorded(&slots.decoder, &rows, &mut slots.state)?;
    for (row, piece) in rows.into_iter().enumerate().skip(1) {
        let whole = [&slots.texts[row][..], piece].concat();
        assert_close(&logits.i(row)?, &alone(&slots.decoder, &whole)?, TOLERANCE);
    }
    Ok(())
}

mod steps_over_pages {
    use candle_core::{Device, Result};

    #[test]
    fn cpu() -> Result<()> {
        super::steps_over_pages(&Device::Cpu)
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn cuda() -> Result<()> {
        super::steps_over_pages(&Device::new_cuda_with_stream(0)?)
    }
}

#[test]
fn wrong_slots_are_errors() -> Result<()> {
    let decoder = decoder("null", &Device::Cpu)?;
    let mut state = decoder.new_slots(2)?;
    let one = ids(&[&[1, 2]], &Device::Cpu)?;
    decoder.forward_slots(&one, &[2], 1, &mut state)?;
    let err = decoder.forward_slots(&one, &[2], 2, &mut state);
    assert_error(err, &["slots 2 to 3", "has 2"]);
    let err = decoder.forward_slots(&one, &[3], 0, &mut state);
    assert_error(err, &["counts [3]"]);
    assert_error(state.copy_slot(0, 1, 1), &["slot 0", "[0, 2]"]);
    assert_error(state.copy_slot(1, 2, 1), &["slot 2"]);
    assert_error(state.cut_slot(1, 3), &["slot 1", "3 positions"]);
    assert_error(state.cut_slot(5, 0), &["slot 5"]);
    let err = decoder.forward_slots(&one, &[0], 0, &mut state);
    assert_error(err, &["counts [0]"]);
    let decoder = self::with_states(&Device::Cpu)?.remove(0).1;
    let mut state = decoder.new_slots(2)?;
    decoder.forward_slots(&one, &[2], 0, &mut state)?;
    assert_error(state.cut_slot(0, 1), &["slot 0", "1 of its 2 positions"]);
    assert_error(state.copy_slot(0, 1, 2), &["only layers of attention"]);
    let err = decoder.new_paged_slots(2, 4, 16);
    assert_error(err, &["--cache-memory", "attention over keys"]);
    let err = decoder.forward(&one, 0, &mut state);
    assert_error(err, &["forward_slots"]);
    Ok(())
}
