//! Decoders whose layers are divided over ranks: the same results as on one device, and errors instead of wrong answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle_core::distributed::{Communicator, LocalGroup};
use candle_core::quantized::gguf_file::{self, MmapedContent, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{bail, test_device, DType, Device, Result, Shape, Tensor, D};
use candle_nn::var_builder::ShardedSafeTensors;
use candle_transformers::auto;
use candle_transformers::blocks::{
    AttentionSpec, Decoder, DecoderSpec, FeedForwardSpec, GgufMetadata, GgufReader, LayerSpec,
    MixerSpec, QkNorm, Reading, StateSpaceNorm, StateSpaceSpec, Wanted, WeightSource,
};
use candle_transformers::parallel::{groups, ParallelDecoder};

use super::families::{decoder, in_pieces, Made, CONFIGS, VOCAB};
use super::support::{assert_close, runs_fewer, token_ids, Numbers};

/// f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

/// A decoder over `world` ranks, all on one device; each loads from the source that `source` makes.
fn launch<S: WeightSource>(
    spec: &DecoderSpec,
    world: usize,
    device: &Device,
    source: impl Fn() -> Result<S> + Sync,
) -> Result<ParallelDecoder> {
    let devices = vec![device.clone(); world];
    ParallelDecoder::launch(&devices, groups(&devices)?, |device, group| {
        Decoder::load_rank(spec.clone(), &mut source()?, DType::F32, device, group)
    })
}

fn made(config: &str, world: usize, device: &Device) -> Result<ParallelDecoder> {
    let spec = auto::config_spec(config)?;
    launch(&spec, world, device, || {
        Ok(Made(DType::F32, device.clone()))
    })
}

/// As [`in_pieces`], over ranks.
fn in_pieces_over_ranks(model: &ParallelDecoder, ids: &Tensor, pieces: &[usize]) -> Result<Tensor> {
    let (mut offset, mut logits, mut state) = (0, None, model.new_state());
    for &piece in pieces {
        let input = ids.narrow(1, offset, piece)?;
        logits = Some(model.next_logits(&input, offset, &mut state)?);
        offset += piece;
    }
    Ok(logits.expect("at least one piece"))
}

/// Whether `world` ranks can share a decoder, by its sizes alone.
fn can_share(spec: &DecoderSpec, world: usize) -> bool {
    if spec.transposed {
        return false;
    }
    spec.layers.iter().all(|layer| {
        let mixer = match &layer.mixer {
            MixerSpec::Attention(attention) => divides_heads(attention, world),
            MixerSpec::Latent(latent) => latent.heads.is_multiple_of(world),
            MixerSpec::ShortConv(conv) => conv.channels.is_multiple_of(world),
            MixerSpec::Delta(delta) => delta.key_heads.is_multiple_of(world),
            MixerSpec::StateSpace(space) => divides_space(space, world),
            MixerSpec::Both(attention, space) => {
                divides_heads(attention, world) && divides_space(space, world)
            }
            MixerSpec::Recurrent(_) => false,
        };
        let inner = match &layer.feed_forward {
            FeedForwardSpec::Gated(mlp) => vec![mlp.inner],
            FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => vec![mlp.inner],
            FeedForwardSpec::Experts(experts) => {
                let shared = experts.shared.as_ref().map(|shared| shared.inner);
                shared.into_iter().chain([experts.inner]).collect()
            }
        };
        mixer && inner.iter().all(|inner| inner.is_multiple_of(world))
    })
}

fn divides_heads(attention: &AttentionSpec, world: usize) -> bool {
    let kv = attention.kv_heads;
    let kv_heads = kv.is_multiple_of(world) || world.is_multiple_of(kv);
    let each_head = matches!(attention.qk_norm, Some(QkNorm::EachHead(_)));
    attention.heads.is_multiple_of(world) && kv_heads && !each_head
}

fn divides_space(space: &StateSpaceSpec, world: usize) -> bool {
    let heads = space.heads;
    let groups = heads.groups == 1 || heads.groups.is_multiple_of(world);
    space.norm == StateSpaceNorm::None && heads.count.is_multiple_of(world) && groups
}

/// Families that are judged on GPUs too.
const ON_GPUS: [&str; 4] = ["llama", "gemma3", "olmo2", "phi"];

/// Every family gives the logits of one device, or says that it cannot be shared.
fn every_family(device: &Device) -> Result<()> {
    let mut shared = vec![];
    for (name, config) in CONFIGS {
        // On a GPU each sum waits for the host: a few have to do.
        if !device.is_cpu() && !ON_GPUS.contains(name) {
            continue;
        }
        // One that ranks can divide, and one that they cannot.
        for config in [config.to_string(), config.replace("61,", "64,")] {
            let spec = auto::config_spec(&config)?;
            let ids = token_ids(2, 12, VOCAB, device)?;
            let pieces = [9, 1, 2];
            let one = decoder(&config, DType::F32, device)?;
            let one = in_pieces(&one, &ids, &pieces, &mut one.new_state())?;
            for world in [1, 2, 3, 4] {
                println!("{name}, {world} ranks");
                let model = made(&config, world, device);
                if world > 1 && !can_share(&spec, world) {
                    let err = model.unwrap_err().to_string();
                    let said = format!("cannot be split across {world} ranks");
                    assert!(err.contains(&said) && err.contains(spec.family), "{err}");
                    continue;
                }
                let several = in_pieces_over_ranks(&model?, &ids, &pieces)?;
                assert_close(&several, &one, TOLERANCE);
                if world > 1 {
                    shared.push(*name);
                }
            }
        }
    }
    shared.dedup();
    let others = ["qwen3", "gemma", "falcon 40B", "mpt"];
    let others = others.iter().filter(|_| device.is_cpu());
    for name in ON_GPUS.iter().chain(others) {
        assert!(shared.contains(name), "{name} is not among {shared:?}");
    }
    Ok(())
}
test_device!(every_family);

/// Weights of a language model in a checkpoint with encoders, under the names of Transformers 4.
struct WithEncoders(Made);

impl WeightSource for WithEncoders {
    fn contains(&self, name: &str) -> bool {
        name.starts_with("language_model.")
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        self.0.shape(name)
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        assert!(self.contains(wanted.name), "{}", wanted.name);
        self.0.read(wanted)
    }
}

/// The parts of ranks have the names that the file has, not those that the specification names first.
#[test]
fn language_models_beside_encoders() -> Result<()> {
    let config = r#"{"model_type": "mistral3", "vision_config": {}, "text_config": {"hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512}}"#;
    let spec = auto::config_spec(config)?;
    let source = || Ok(WithEncoders(Made(DType::F32, Device::Cpu)));
    let ids = token_ids(1, 9, VOCAB, &Device::Cpu)?;
    let one = Decoder::load(spec.clone(), &mut source()?, DType::F32, &Device::Cpu)?;
    let one = in_pieces(&one, &ids, &[9], &mut one.new_state())?;
    let two = launch(&spec, 2, &Device::Cpu, source)?;
    assert_close(&in_pieces_over_ranks(&two, &ids, &[9])?, &one, TOLERANCE);
    Ok(())
}

/// Greedy steps choose the same tokens, with ranks that have heads of keys and with ranks that share them.
fn greedy_tokens(device: &Device) -> Result<()> {
    let steps = if runs_fewer(device) { 6 } else { 32 };
    for (name, config) in CONFIGS {
        if !["llama", "qwen3", "gemma3"].contains(name) {
            continue;
        }
        for kv_heads in [1, 2, 4] {
            let config = config.replace("61,", "64,").replace(
                r#""num_key_value_heads": 2"#,
                &format!(r#""num_key_value_heads": {kv_heads}"#),
            );
            let prompt = token_ids(1, 7, VOCAB, device)?;
            let greedy = |model: ParallelDecoder| -> Result<Vec<u32>> {
                let (mut ids, mut seen, mut tokens) = (prompt.clone(), 0, vec![]);
                let mut state = model.new_state();
                for _ in 0..steps {
                    let logits = model.next_logits(&ids, seen, &mut state)?;
                    seen += ids.dim(1)?;
                    ids = logits.argmax_keepdim(D::Minus1)?;
                    tokens.push(ids.flatten_all()?.to_vec1::<u32>()?[0]);
                }
                Ok(tokens)
            };
            let one = greedy(decoder(&config, DType::F32, device)?.into())?;
            for world in [2, 4] {
                let several = greedy(made(&config, world, device)?)?;
                assert_eq!(
                    several, one,
                    "{name}, {kv_heads} heads of keys, {world} ranks"
                );
            }
        }
    }
    Ok(())
}
test_device!(greedy_tokens);

/// A sequence continues from a copy, and rows of different lengths have the same results as on one device.
fn states_and_rows(device: &Device) -> Result<()> {
    let config = CONFIGS[0].1;
    let one = decoder(config, DType::F32, device)?;
    let several = made(config, 2, device)?;
    let ids = token_ids(1, 12, VOCAB, device)?;
    let part = |start, len| ids.narrow(1, start, len);
    let mut state = several.new_state();
    several.next_logits(&part(0, 5)?, 0, &mut state)?;
    let mut copy = state.clone();
    // The original takes another token before the copy continues.
    several.next_logits(&part(2, 4)?, 5, &mut state)?;
    drop(state);
    let logits = several.next_logits(&part(5, 7)?, 5, &mut copy)?;
    let expected = in_pieces(&one, &ids, &[5, 7], &mut one.new_state())?;
    assert_close(&logits, &expected, TOLERANCE);

    // Only this call is wrong: the group continues.
    let err = several
        .next_logits(&part(0, 3)?, 510, &mut copy)
        .unwrap_err();
    assert!(err.to_string().contains("512"), "{err}");
    let both = Tensor::cat(&[&part(0, 6)?, &part(6, 6)?], 0)?;
    let (mut state, mut expected) = (several.new_state(), one.new_state());
    let err = several
        .next_logits_of_rows(&both, &[6, 7], &mut state)
        .unwrap_err();
    assert!(err.to_string().contains("from 0 to 6"), "{err}");
    for counts in [[6, 2], [1, 6]] {
        let logits = several.next_logits_of_rows(&both, &counts, &mut state)?;
        let expected = one.next_logits_of_rows(&both, &counts, &mut expected)?;
        assert_close(&logits, &expected, TOLERANCE);
    }
    Ok(())
}
test_device!(states_and_rows);

/// Logits of texts in slots after each call: prompts of different lengths, a step without one of them, a slot that continues from a part of
/// another's, and one that starts again.
fn of_slots(model: &ParallelDecoder, pages: bool, device: &Device) -> Result<Vec<Tensor>> {
    let mut state = match pages {
        true => model.new_paged_slots(3, 9, 16)?,
        false => model.new_slots(3)?,
    };
    let rewinds = model.decoder().slots_rewind();
    if pages {
        for (slot, own) in [[4, 0], [2, 5], [8, 1]].iter().enumerate() {
            state.set_pages(slot, own, 0)?;
        }
    }
    let mut logits = vec![];
    let prompts = token_ids(3, 7, VOCAB, device)?;
    logits.push(model.next_logits_of_slots(&prompts, &[7, 2, 5], 0, &mut state)?);
    let one_each = prompts.narrow(1, 3, 1)?.contiguous()?;
    logits.push(model.next_logits_of_slots(&one_each, &[1, 0, 1], 0, &mut state)?);
    assert_eq!(state.lens(), [8, 2, 6]);
    model.read_slots(&prompts.narrow(0, 1, 1)?, &[7], 1, &mut state)?;
    if rewinds {
        match pages {
            true => state.set_pages(2, &[8, 1], 4)?,
            false => {
                state.copy_slot(1, 2, 4)?;
                state.cut_slot(0, 3)?;
            }
        }
        let last = model.logits_of_slots(&prompts.narrow(0, 0, 2)?, 3, 0, &mut state)?;
        logits.push(last.flatten(0, 1)?);
    } else {
        state.cut_slot(2, 0)?;
    }
    // A step that comes again is recorded where a device records, and launched.
    for _ in 0..4 {
        logits.push(model.next_logits_of_slots(&one_each, &[1, 1, 1], 0, &mut state)?);
    }
    Ok(logits)
}

/// Texts in slots, each with a place on every rank.
fn slots(device: &Device) -> Result<()> {
    let mut seen = 0;
    for (name, config) in CONFIGS {
        if !device.is_cpu() && !ON_GPUS[..2].contains(name) {
            continue;
        }
        let config = config.replace("61,", "64,");
        let spec = auto::config_spec(&config)?;
        if !can_share(&spec, 2) {
            continue;
        }
        let is_attention = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        let in_pages = spec.layers.iter().all(is_attention);
        let (one, two) = (
            decoder(&config, DType::F32, device)?,
            made(&config, 2, device)?,
        );
        let one = ParallelDecoder::from(one);
        for pages in [false, true] {
            if pages && !in_pages {
                let err = two.new_paged_slots(3, 9, 16).unwrap_err().to_string();
                assert!(err.contains("attention over keys and values"), "{err}");
                continue;
            }
            println!("{name}, {}", if pages { "pages" } else { "slots" });
            let expected = of_slots(&one, pages, device)?;
            let found = of_slots(&two, pages, device)?;
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(found, expected, TOLERANCE);
            }
            seen += 1;
        }
    }
    assert!(seen >= if device.is_cpu() { 40 } else { 4 }, "{seen}");
    Ok(())
}
test_device!(slots);

/// A wrong call with slots ends no other.
#[test]
fn wrong_slots_are_errors_of_their_call() -> Result<()> {
    let device = Device::Cpu;
    let model = made(&CONFIGS[0].1.replace("61,", "64,"), 2, &device)?;
    let mut state = model.new_slots(2)?;
    let ids = token_ids(2, 3, VOCAB, &device)?;
    for (counts, first, told) in [
        ([3, 4], 0, "from 0 to 3"),
        ([3, 3], 1, "slots 1 to 3 requested"),
    ] {
        let err = model.next_logits_of_slots(&ids, &counts, first, &mut state);
        let err = err.unwrap_err().to_string();
        assert!(err.contains(told), "{err}");
    }
    let err = model.logits_of_slots(&ids, 4, 0, &mut state).unwrap_err();
    assert!(err.to_string().contains("last 4 of 3"), "{err}");
    let err = state.cut_slot(1, 5).unwrap_err().to_string();
    assert!(err.contains("slot 1"), "{err}");
    let err = state.set_pages(0, &[0], 1).unwrap_err().to_string();
    assert!(err.contains("no pages"), "{err}");
    let err = state.on_one_device().unwrap_err().to_string();
    assert!(err.contains("this one is on 2"), "{err}");
    let logits = model.next_logits_of_slots(&ids, &[3, 1], 0, &mut state)?;
    assert_eq!(logits.dims(), [2, 64]);
    Ok(())
}

const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": false}"#;

/// The tensors of [`LLAMA`] by name.
fn llama_weights() -> Result<HashMap<String, Tensor>> {
    let spec = auto::config_spec(LLAMA)?;
    let mut made = Made(DType::F32, Device::Cpu);
    let names = Decoder::check_weights(spec, &mut made)?;
    let mut weights = HashMap::new();
    for name in names {
        let shape: &[usize] = match name.rsplit('.').nth(1).unwrap() {
            "embed_tokens" | "lm_head" => &[64, 128],
            "k_proj" | "v_proj" => &[64, 128],
            "gate_proj" | "up_proj" => &[256, 128],
            "down_proj" => &[128, 256],
            "q_proj" | "o_proj" => &[128, 128],
            _ => &[128],
        };
        let mut numbers = Numbers::new(name.len() as u64);
        let tensor = match shape {
            [_] => (numbers.tensor(shape, 0.2, &Device::Cpu)? + 1.)?,
            _ => numbers.tensor(shape, (3. / shape[1] as f32).sqrt(), &Device::Cpu)?,
        };
        weights.insert(name, tensor);
    }
    Ok(weights)
}

/// From a safetensors file; each rank reads its part.
fn from_safetensors(device: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.safetensors");
    candle_core::safetensors::save(&llama_weights()?, &path)?;
    let spec = auto::config_spec(LLAMA)?;
    // SAFETY: nothing else writes to this directory.
    let source = || unsafe { ShardedSafeTensors::var_builder(&[&path], DType::F32, device) };
    let one = Decoder::load(spec.clone(), &mut source()?, DType::F32, device)?;
    let ids = token_ids(1, 12, 64, device)?;
    let expected = in_pieces(&one, &ids, &[9, 3], &mut one.new_state())?;
    for world in [1, 2, 4] {
        let several = launch(&spec, world, device, source)?;
        let logits = in_pieces_over_ranks(&several, &ids, &[9, 3])?;
        assert_close(&logits, &expected, TOLERANCE);
    }
    Ok(())
}
test_device!(from_safetensors);

/// [`LLAMA`] as a GGUF file whose matrices are in a format.
fn write_gguf(path: &std::path::Path, format: GgmlDType, heads: u32) -> Result<()> {
    let mut tensors = vec![];
    for (name, tensor) in llama_weights()? {
        let format = if tensor.rank() == 1 {
            GgmlDType::F32
        } else {
            format
        };
        let name = super::gguf::gguf_name(&name);
        tensors.push((name, QTensor::quantize(&tensor, format)?));
    }
    let number = |n: u32| Value::U32(n);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.attention.head_count", number(heads)),
        ("llama.attention.head_count_kv", number(heads / 2)),
        ("llama.block_count", number(2)),
        ("llama.embedding_length", number(128)),
        ("llama.feed_forward_length", number(256)),
        ("llama.context_length", number(512)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    gguf_file::write(&mut std::fs::File::create(path)?, &metadata, &tensors)
}

/// From a GGUF file, mapped and read, whose blocks are divided.
fn from_gguf(device: &Device) -> Result<()> {
    let dir = tempfile::tempdir()?;
    for format in [
        GgmlDType::F16,
        GgmlDType::Q8_0,
        GgmlDType::Q4_0,
        GgmlDType::Q5_1,
    ] {
        let path = dir.path().join("model.gguf");
        write_gguf(&path, format, 4)?;
        // SAFETY: nothing writes to the file while it is mapped.
        let mapped = unsafe { MmapedContent::new(&path)? };
        let spec = auto::gguf_spec(&GgufMetadata::new(&mapped.metadata, &&mapped)?)?;
        let one = Decoder::load(spec.clone(), &mut &mapped, DType::F32, device)?;
        let ids = token_ids(1, 12, 64, device)?;
        let expected = in_pieces(&one, &ids, &[9, 3], &mut one.new_state())?;
        for world in [1, 2, 4] {
            let several = launch(&spec, world, device, || Ok(&mapped))?;
            let logits = in_pieces_over_ranks(&several, &ids, &[9, 3])?;
            // Activations are rounded to 8 bits before a product with blocks: last digits that differ can make one step of that.
            let tolerance = match format {
                GgmlDType::F16 => TOLERANCE,
                _ => 1e-2,
            };
            println!("{format:?}, {world} ranks");
            assert_close(&logits, &expected, tolerance);
        }
        let mut file = std::fs::File::open(&path)?;
        let content = gguf_file::Content::read(&mut file)?;
        let group: Vec<_> = groups(&[Device::Cpu, Device::Cpu])?;
        let mut reader = GgufReader {
            content,
            reader: &mut file,
        };
        let [first, _] = <[_; 2]>::try_from(group).unwrap();
        let first = Decoder::load_rank(spec, &mut reader, DType::F32, device, first)?;
        assert_eq!(first.spec().layers[0], {
            let mut half = one.spec().layers[0].clone();
            let attention = half.attention_mut().unwrap();
            (attention.heads, attention.kv_heads) = (2, 1);
            if let FeedForwardSpec::Gated(mlp) = &mut half.feed_forward {
                mlp.inner = 128;
            }
            half
        });
    }
    Ok(())
}
test_device!(from_gguf);

/// Blocks that a division would cut are an error, and so is a number of ranks that does not fit.
#[test]
fn what_cannot_be_divided() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    let errs = |heads: u32, world: usize, words: &[&str]| -> Result<()> {
        write_gguf(&path, GgmlDType::Q8_0, heads)?;
        // SAFETY: nothing writes to the file while it is mapped.
        let mapped = unsafe { MmapedContent::new(&path)? };
        let spec = auto::gguf_spec(&GgufMetadata::new(&mapped.metadata, &&mapped)?)?;
        let model = launch(&spec, world, &Device::Cpu, || Ok(&mapped));
        let err = model.unwrap_err().to_string();
        for word in words {
            assert!(err.contains(word), "{word:?} is not in {err}");
        }
        Ok(())
    };
    errs(
        4,
        3,
        &[
            "llama",
            "layer 0 has 4 heads",
            "cannot be split across 3 ranks",
        ],
    )?;
    // Eight heads of 16: each rank would have half of a block.
    errs(
        8,
        8,
        &["blk.0.attn_output.weight", "Q8_0", "blocks of 32", "0..16"],
    )
}

/// A group's end that goes wrong in one of its calls.
#[derive(Debug)]
struct Failing {
    group: LocalGroup,
    calls: AtomicUsize,
    panics: bool,
}

impl Communicator for Failing {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn all_reduce(&self, xs: &Tensor) -> Result<Tensor> {
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            6 if self.panics => panic!("on purpose"),
            6 => bail!("out of memory"),
            _ => self.group.all_reduce(xs),
        }
    }

    fn all_gather(&self, xs: &Tensor, dim: usize) -> Result<Tensor> {
        self.group.all_gather(xs, dim)
    }

    fn broadcast(&self, xs: &Tensor, root: usize) -> Result<Tensor> {
        self.group.broadcast(xs, root)
    }

    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}

/// A rank that fails in the middle of a step ends the model with an error that names it.
#[test]
fn a_rank_that_fails() -> Result<()> {
    let spec = auto::config_spec(CONFIGS[0].1)?;
    let ids = token_ids(1, 3, VOCAB, &Device::Cpu)?;
    for (wrong, panics) in [(0, false), (1, false), (1, true), (2, true)] {
        let devices = vec![Device::Cpu; 4];
        let ranks = LocalGroup::ranks(4)?
            .into_iter()
            .map(|group| -> Arc<dyn Communicator> {
                if group.rank() == wrong {
                    Arc::new(Failing {
                        group,
                        calls: AtomicUsize::new(0),
                        panics,
                    })
                } else {
                    Arc::new(group)
                }
            });
        let model = ParallelDecoder::launch(&devices, ranks.collect(), |device, group| {
            let mut source = Made(DType::F32, Device::Cpu);
            Decoder::load_rank(spec.clone(), &mut source, DType::F32, device, group)
        })?;
        // Two layers: four sums a step, so it is the second step.
        let mut state = model.new_state();
        model.next_logits(&ids, 0, &mut state)?;
        let err = model
            .next_logits(&ids, 3, &mut state)
            .unwrap_err()
            .to_string();
        match (wrong, panics) {
            (0, _) => assert!(err.contains("out of memory"), "{err}"),
            (_, false) => assert!(err.contains("rank 1 failed: out of memory"), "{err}"),
            _ => assert!(err.contains(&format!("rank {wrong} panicked")), "{err}"),
        }
        let mut other = model.new_state();
        let again = model
            .next_logits(&ids, 0, &mut other)
            .unwrap_err()
            .to_string();
        assert!(again.contains(&format!("rank {wrong}")), "{again}");
    }
    Ok(())
}

/// A rank whose weights cannot be loaded is named.
#[test]
fn a_rank_that_does_not_load() -> Result<()> {
    let spec = auto::config_spec(CONFIGS[0].1)?;
    let devices = vec![Device::Cpu; 2];
    let load = |panics: bool| {
        ParallelDecoder::launch(&devices, groups(&devices)?, |device, group| {
            match (group.rank(), panics) {
                (1, true) => panic!("on purpose"),
                (1, false) => bail!("no memory left"),
                _ => {}
            }
            let mut source = Made(DType::F32, Device::Cpu);
            Decoder::load_rank(spec.clone(), &mut source, DType::F32, device, group)
        })
    };
    let err = load(false).unwrap_err().to_string();
    assert!(
        err.contains("rank 1 on Cpu") && err.contains("no memory left"),
        "{err}"
    );
    let err = load(true).unwrap_err().to_string();
    assert!(
        err.contains("rank 1 on Cpu") && err.contains("panicked"),
        "{err}"
    );
    let err = ParallelDecoder::launch(&devices, vec![], |_, _| bail!("not called")).unwrap_err();
    assert!(
        err.to_string().contains("expected 2 ranks in order"),
        "{err}"
    );
    Ok(())
}

/// On two cards, over NCCL, what one card gives: logits, and greedy tokens that the host does not wait for between sums.
/// `NCCL_NVLS_ENABLE=0 cargo test -p candle-transformers --features cuda --test transformers two_cards -- --ignored --test-threads 1`.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards() -> Result<()> {
    let devices = [Device::new_cuda(0)?, Device::new_cuda(1)?];
    for (name, config) in CONFIGS {
        if !ON_GPUS.contains(name) {
            continue;
        }
        let config = config.replace("61,", "64,");
        let spec = auto::config_spec(&config)?;
        let load = |device: &Device, group: Arc<dyn Communicator>| {
            let mut source = Made(DType::F32, device.clone());
            Decoder::load_rank(spec.clone(), &mut source, DType::F32, device, group)
        };
        let groups = groups(&devices)?;
        assert!(format!("{groups:?}").contains("Nccl"), "{groups:?}");
        let several = ParallelDecoder::launch(&devices, groups, load)?;
        let one = decoder(&config, DType::F32, &devices[0])?;
        let ids = token_ids(2, 12, VOCAB, &devices[0])?;
        let pieces = [9, 1, 2];
        let expected = in_pieces(&one, &ids, &pieces, &mut one.new_state())?;
        let logits = in_pieces_over_ranks(&several, &ids, &pieces)?;
        assert_close(&logits, &expected, TOLERANCE);
        // Token ids on the host, too.
        let ids = ids.to_device(&Device::Cpu)?;
        let logits = in_pieces_over_ranks(&several, &ids, &pieces)?;
        assert_close(&logits, &expected, TOLERANCE);

        let (one, mut tokens) = (ParallelDecoder::from(one), vec![]);
        let expected = of_slots(&one, false, &devices[0])?;
        for (found, expected) in of_slots(&several, false, &devices[0])?
            .iter()
            .zip(&expected)
        {
            assert_close(found, expected, 1e-4);
        }
        for model in [&one, &several] {
            let (mut state, mut next) = (model.new_state(), token_ids(1, 7, VOCAB, &devices[0])?);
            let (mut seen, mut chosen) = (0, vec![]);
            for _ in 0..64 {
                let logits = model.next_logits(&next, seen, &mut state)?;
                seen += next.dim(1)?;
                next = logits.argmax_keepdim(D::Minus1)?;
                chosen.push(next.clone());
            }
            tokens.push(Tensor::cat(&chosen, 1)?.to_vec2::<u32>()?);
        }
        assert_eq!(tokens[0], tokens[1], "{name}");
    }
    Ok(())
}
