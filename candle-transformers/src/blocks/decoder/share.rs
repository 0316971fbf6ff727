//! One rank's share of a decoder: tensor parallelism after Megatron-LM, [arXiv 1909.08053](https://arxiv.org/abs/1909.08053).
//!
//! A rank has some of the heads of each layer, and some of the inner elements of its MLP: rows of the layers that lead to them, and
//! columns of those that lead back to the stream. What comes out is a part of a sum over the ranks. The norms, the table of tokens and
//! everything in between are on each rank.

use std::ops::Range;
use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::quantized::QMatMul;
use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::Init;

use super::super::weights::{
    at_once, Cut, Cuts, LinearSpec, Order, RankSource, TokenEmbedding, WeightSource, Weights,
};
use super::super::{
    AttentionSpec, DeltaForm, DeltaSpec, ExpertsSpec, FeedForwardSpec, JoinedExperts, LatentSpec,
    Names, Projection, QkNorm, ShortConvSpec, StateSpaceNorm, StateSpaceSpec,
};
use super::{Decoder, DecoderPart, DecoderSpec, Head, MixerSpec};

/// A rank and the number of them.
#[derive(Clone, Copy)]
struct Rank {
    rank: usize,
    world: usize,
}

impl Rank {
    /// The rank's range of `size` elements, if they can be divided.
    fn range(self, size: usize) -> Option<Range<usize>> {
        let len = size / self.world;
        size.is_multiple_of(self.world)
            .then(|| self.rank * len..(self.rank + 1) * len)
    }

    /// The heads of keys and values that the rank's query heads read: a range of them, or one that several ranks have.
    fn kv_heads(self, kv_heads: usize) -> Option<Range<usize>> {
        self.range(kv_heads).or_else(|| {
            let head = self.rank / (self.world / kv_heads.max(1)).max(1);
            self.world.is_multiple_of(kv_heads).then(|| head..head + 1)
        })
    }
}

impl Decoder {
    /// One rank's share of a decoder, whose layers are divided over the ranks of `group`: each rank has some of the heads and some of the
    /// inner elements of the MLPs, and the ranks add up what comes out. All ranks load the same decoder, and make the same calls with the
    /// same tokens in the same order; each gets all logits. Of a tensor that is divided, the rank reads its part
    /// ([`WeightSource::read_part`]).
    ///
    /// If there are fewer heads of keys and values than ranks, they are repeated. The token table is on every rank; the output layer is
    /// divided if the number of tokens can be, and if it is not a table of blocks. [`spec`](Self::spec) is that of the share.
    ///
    /// # Errors
    /// As [`load`](Self::load); if a layer cannot be divided over the ranks: its number of heads or its inner size is not a multiple of
    /// their number, its blocks would be cut, or it has a recurrence or a norm over all heads of a state space.
    pub fn load_rank(
        spec: DecoderSpec,
        source: &mut dyn WeightSource,
        dtype: DType,
        device: &Device,
        group: Arc<dyn Communicator>,
    ) -> Result<Self> {
        spec.check()?;
        // The rank's part of the output layer is chosen before anything is read, so the file's own one is taken without a look at it.
        let mut spec = spec;
        {
            let weights = Weights::check(&mut *source);
            spec = spec.named(&weights);
            let name = spec.names.after(spec.layers.len(), spec.names.head);
            spec.head = match in_file(spec.head, &name, &weights) {
                Head::Tied if separate(&name, &weights) => Head::Linear { bias: false },
                head => head,
            };
        }
        let (own, mut cuts) = share(&spec, group.rank(), group.world_size())?;
        for (name, (whole, _)) in &mut cuts {
            // Files may leave out dimensions of size 1.
            if let Some(shape) = source.shape(name) {
                *whole = shape.into_dims();
            }
        }
        at_once(async {
            Self::parts(spec, &mut Weights::check(&mut *source)).await?;
            let mut source = RankSource { source, cuts };
            let weights = Weights::new(&mut source, dtype, device);
            Self::parts(own, &mut weights.of_rank(group)).await
        })
    }
}

/// The output layer, or the rank's share of it and the group that has the others.
pub(super) async fn head(
    spec: &DecoderSpec,
    name: String,
    embedding: &TokenEmbedding,
    weights: &mut Weights<'_>,
) -> Result<(Option<Projection>, Option<Arc<dyn Communicator>>)> {
    let group = weights.group().cloned();
    let range = group
        .as_ref()
        .and_then(|group| vocab_range(spec.vocab, group.rank(), group.world_size()));
    let linear = |bias| LinearSpec {
        name: name.clone(),
        in_dim: spec.hidden,
        out_dim: range.as_ref().map_or(spec.vocab, |range| range.len()),
        bias,
    };
    match in_file(spec.head, &name, weights) {
        Head::None => Ok((None, None)),
        Head::Linear { bias } => {
            let head = weights.linear(&linear(bias)).await?;
            Ok((Some(head), group.filter(|_| range.is_some())))
        }
        // The file has both. PyTorch's own format writes a table that is shared twice.
        Head::Tied if group.is_none() && separate(&name, weights) => {
            let head = weights.linear(&linear(false)).await?;
            let same = match (head.dense(), embedding.dense()) {
                // One on another device cannot be shared.
                (Some(head), Some(table))
                    if !weights.is_check() && head.device().same_device(table.device()) =>
                {
                    same_rows(head, table)?
                }
                _ => false,
            };
            let head = if same { embedding.tied() } else { head };
            Ok((Some(head), None))
        }
        Head::TiedWithBias => {
            let bias = format!("{name}.bias");
            let bias = weights.dense(&bias, &[spec.vocab], Init::Const(0.)).await?;
            let table = table_here(spec, embedding, weights).await?;
            Ok((Some(table.tied_with(bias)), None))
        }
        Head::Tied | Head::Found { .. } if group.is_none() => {
            let table = table_here(spec, embedding, weights).await?;
            Ok((Some(table.tied()), None))
        }
        Head::Tied | Head::Found { .. } => Ok(match (range, embedding.dense()) {
            (Some(range), Some(table)) => {
                let rows = table.narrow(0, range.start, range.len())?;
                let head = Projection::new(QMatMul::Tensor(rows), None);
                (Some(head), group)
            }
            _ => (Some(embedding.tied()), None),
        }),
    }
}

/// The table of tokens where the output layer is: read once more, if its first use is on another device.
async fn table_here(
    spec: &DecoderSpec,
    embedding: &TokenEmbedding,
    weights: &mut Weights<'_>,
) -> Result<TokenEmbedding> {
    if weights.has_elsewhere(DecoderPart::Embedding) {
        let name = table_name(spec, weights);
        weights.embedding(&name, spec.vocab, spec.hidden).await
    } else {
        Ok(embedding.clone())
    }
}

/// The name of the table of tokens. Where it is the output layer too, a file may have it under that name alone.
pub(super) fn table_name(spec: &DecoderSpec, weights: &Weights<'_>) -> String {
    let (table, head) = (
        spec.names.embedding,
        spec.names.after(spec.layers.len(), spec.names.head),
    );
    let tied = matches!(
        spec.head,
        Head::Tied | Head::TiedWithBias | Head::Found { .. }
    );
    if tied && !weights.has(&format!("{table}.weight")) && separate(&head, weights) {
        head
    } else {
        table.to_string()
    }
}

/// Whether the file has a weight of the output layer. A source that makes tensors has every one.
fn separate(name: &str, weights: &Weights<'_>) -> bool {
    !weights.makes_tensors() && weights.has(&format!("{name}.weight"))
}

/// The head by what the file has, where the configuration leaves that to it.
pub(super) fn in_file(head: Head, name: &str, weights: &Weights<'_>) -> Head {
    match head {
        Head::Found { bias } if weights.makes_tensors() || separate(name, weights) => {
            Head::Linear { bias }
        }
        Head::Found { bias: false } => Head::Tied,
        Head::Found { bias: true } => Head::TiedWithBias,
        Head::TiedWithBias if separate(name, weights) => Head::Linear { bias: true },
        head => head,
    }
}

/// Whether two tables are the same, told some rows at a time: the first that differ are enough.
fn same_rows(lhs: &Tensor, rhs: &Tensor) -> Result<bool> {
    if lhs.dims() != rhs.dims() || lhs.dtype() != rhs.dtype() {
        return Ok(false);
    }
    let (rows, _) = lhs.dims2()?;
    for start in (0..rows).step_by(4096) {
        let len = (rows - start).min(4096);
        let differ = lhs.narrow(0, start, len)?.ne(&rhs.narrow(0, start, len)?)?;
        if differ.flatten_all()?.max(0)?.to_scalar::<u8>()? != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The range of tokens for which a rank computes the logits; `None` if each computes all.
fn vocab_range(vocab: usize, rank: usize, world: usize) -> Option<Range<usize>> {
    match world {
        1 => None,
        _ => Rank { rank, world }.range(vocab),
    }
}

/// The share of rank `rank` of `world`: its decoder, and the parts of the tensors.
///
/// # Errors
/// If a layer cannot be divided.
fn share(spec: &DecoderSpec, rank: usize, world: usize) -> Result<(DecoderSpec, Cuts)> {
    let mut share = spec.clone();
    let mut cuts = Cuts::new();
    if world == 1 {
        return Ok((share, cuts));
    }
    if spec.transposed {
        bail!(
            "{}: weights of inputs by outputs cannot be split across {world} ranks; use one device",
            spec.family
        )
    }
    let mut cutter = Cutter {
        rank: Rank { rank, world },
        hidden: spec.hidden,
        cuts: &mut cuts,
    };
    let names = &spec.names;
    for (i, layer) in share.layers.iter_mut().enumerate() {
        let prefix = names.layer(i);
        let name = |part: &str| format!("{prefix}.{part}");
        let refused = |what: &str| -> Result<()> {
            bail!(
                "{}: layer {i} {what}, which cannot be split across {world} ranks; use a different number of ranks, or one device",
                spec.family
            )
        };
        let result = match &mut layer.mixer {
            MixerSpec::Attention(attention) => cutter.attention(attention, name, names),
            MixerSpec::Latent(latent) => cutter.latent(latent, name, names),
            MixerSpec::ShortConv(conv) => cutter.short_conv(conv, name, names),
            MixerSpec::Delta(delta) => cutter.delta(delta, name, names),
            MixerSpec::StateSpace(space) => cutter.state_space(space, name),
            MixerSpec::Both(attention, space) => cutter
                .attention(attention, name, names)
                .and_then(|()| cutter.state_space(space, name)),
            MixerSpec::Recurrent(_) => Err("has a recurrence".into()),
        };
        result.or_else(|what: String| refused(&what))?;
        let result = match &mut layer.feed_forward {
            FeedForwardSpec::Experts(experts) => cutter.experts(experts, name, names),
            mlp => cutter.mlp(mlp, name, names),
        };
        result.or_else(|what| refused(&what))?;
    }
    for factors in &mut share.factors {
        let weight = format!("{}.weight", factors.name);
        let cut = cutter.cuts.iter().find(|(name, _)| name.ends_with(&weight));
        if let Some((0, rows)) = cut.and_then(|(_, (_, cut))| cut.ranges()) {
            factors.outputs = factors_of(&factors.outputs, rows);
        }
    }
    if let (Head::Linear { bias }, Some(range)) = (spec.head, vocab_range(spec.vocab, rank, world))
    {
        let head = names.after(spec.layers.len(), names.head);
        cutter.rows(&head, [spec.vocab, spec.hidden], bias, vec![range]);
    }
    Ok((share, cuts))
}

struct Cutter<'a> {
    rank: Rank,
    hidden: usize,
    cuts: &'a mut Cuts,
}

/// The reason why a layer cannot be divided.
type Cutting = std::result::Result<(), String>;

impl Cutter<'_> {
    fn attention(
        &mut self,
        spec: &mut AttentionSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let (heads, kv_heads, head_dim) = (spec.heads, spec.kv_heads, spec.head_dim);
        let q = self.heads(heads)?;
        let Some(kv) = self.rank.kv_heads(kv_heads) else {
            return Err(format!("has {kv_heads} heads of keys and values"));
        };
        if matches!(spec.qk_norm, Some(QkNorm::Whole(norm)) if !norm.is_rms()) {
            return Err("has a norm with a mean over all heads".into());
        }
        if matches!(spec.qk_norm, Some(QkNorm::EachHead(_))) {
            return Err("has a norm with a weight for each head".into());
        }
        let (hidden, bias) = (self.hidden, spec.qkv_bias);
        let elements = |heads: &Range<usize>| scaled(heads, head_dim);
        let (q_rows, kv_rows) = (elements(&q), elements(&kv));
        let (q_dim, kv_dim) = (spec.q_dim(), spec.kv_dim());
        match spec.joined {
            None => {
                // The gates of each head are interleaved with its queries.
                let per_head = if spec.gate { 2 } else { 1 };
                let gated = scaled(&q_rows, per_head);
                self.rows(
                    &name(names.q),
                    [q_dim * per_head, hidden],
                    bias,
                    vec![gated],
                );
                for part in [names.k, names.v] {
                    self.rows(&name(part), [kv_dim, hidden], bias, vec![kv_rows.clone()]);
                }
            }
            Some(order) => {
                let dims = [q_dim, kv_dim, kv_dim];
                let parts = [q_rows.clone(), kv_rows.clone(), kv_rows.clone()];
                let rows = joined_rows(order, dims, parts);
                self.rows(&name(names.qkv), [q_dim + 2 * kv_dim, hidden], bias, rows);
                spec.joined = Some(Order::Layers);
            }
        }
        if let Some(QkNorm::Whole(norm)) = spec.qk_norm {
            for (part, rows, dim) in [
                (names.q_norm, &q_rows, q_dim),
                (names.k_norm, &kv_rows, kv_dim),
            ] {
                if norm.has_weight() {
                    let cut = Cut::rows(vec![rows.clone()]);
                    self.cut(format!("{}.weight", name(part)), &[dim], cut);
                }
            }
        }
        if spec.sinks {
            let cut = Cut::rows(vec![q.clone()]);
            self.cut(name(names.sinks), &[heads], cut);
        }
        if let Some(slopes) = &mut spec.slopes {
            *slopes = slopes[q.clone()].to_vec();
        }
        self.columns(&name(names.o), q_dim, spec.o_bias, vec![q_rows]);
        (spec.heads, spec.kv_heads) = (q.len(), kv.len());
        Ok(())
    }

    fn mlp(
        &mut self,
        spec: &mut FeedForwardSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let hidden = self.hidden;
        let (inner, bias, joined) = match spec {
            FeedForwardSpec::Gated(mlp) => {
                let joined = mlp.joined.map(|order| (order, names.gate_up));
                (&mut mlp.inner, mlp.bias, joined)
            }
            FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => {
                (&mut mlp.inner, mlp.bias, None)
            }
            FeedForwardSpec::Experts(_) => return Err("has experts".into()),
        };
        let range = self.inner(*inner)?;
        match joined {
            Some((order, gate_up)) => {
                let rows = joined_rows(order, [*inner; 2], [range.clone(), range.clone()]);
                self.rows(&name(gate_up), [2 * *inner, hidden], bias, rows);
            }
            None => {
                for part in [names.gate, names.up] {
                    let rows = vec![range.clone()];
                    self.rows(&name(part), [*inner, hidden], bias, rows);
                }
            }
        }
        self.columns(&name(names.down), *inner, bias, vec![range.clone()]);
        *inner = range.len();
        if let FeedForwardSpec::Gated(mlp) = spec {
            mlp.joined = mlp.joined.map(|_| Order::Layers);
        }
        Ok(())
    }

    /// Each rank has a part of every expert, so that all of them read the same amount whichever are chosen. The router is on each.
    fn experts(
        &mut self,
        spec: &mut ExpertsSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let (count, inner, hidden) = (spec.count, spec.inner, self.hidden);
        let range = self.inner(inner)?;
        let of = |dim, ranges: &[Range<usize>]| Cut::Ranges {
            dim,
            ranges: ranges.to_vec(),
        };
        let one = std::slice::from_ref(&range);
        // The forms that files have; a form that a file lacks is never asked for.
        let sizes = [
            ([inner, hidden], 0),
            ([inner, hidden], 0),
            ([hidden, inner], 1),
        ];
        let parts = names.experts.iter().zip(names.expert).zip(sizes);
        for ((stacked, each), ([rows, columns], dim)) in parts {
            self.cut(name(stacked), &[count, rows, columns], of(dim + 1, one));
            for expert in 0..if each.is_empty() { 0 } else { count } {
                let each = format!("{}.weight", name(each).replace("{}", &expert.to_string()));
                self.cut(each, &[rows, columns], of(dim, one));
            }
        }
        let [both, down] = names.experts_joined.map(&name);
        let pairs = match spec.joined {
            JoinedExperts::Halves => {
                let rows = joined_rows(Order::Layers, [inner; 2], [range.clone(), range.clone()]);
                self.cut(both, &[count, 2 * inner, hidden], of(1, &rows));
                self.cut(down, &[count, hidden, inner], of(2, one));
                rows
            }
            JoinedExperts::Alternating => {
                let rows = vec![scaled(&range, 2)];
                // As MXFP4, a row of blocks of 32 numbers for each output, and a scale for each block.
                let blocks = range.start / 32..range.end / 32;
                let in_blocks = std::slice::from_ref(&blocks);
                for (suffix, last) in [("blocks", Some(16)), ("scales", None)] {
                    let dims = |rows, columns: usize| {
                        let blocks = [count, rows, columns / 32];
                        blocks.into_iter().chain(last).collect::<Vec<_>>()
                    };
                    let name = |part: &str| format!("{part}_{suffix}");
                    self.cut(name(&both), &dims(2 * inner, hidden), of(1, &rows));
                    self.cut(name(&down), &dims(hidden, inner), of(2, in_blocks));
                }
                self.cut(both, &[count, hidden, 2 * inner], of(2, &rows));
                self.cut(down, &[count, inner, hidden], of(1, one));
                rows
            }
        };
        if spec.bias {
            let [gate, up, down] = names.expert_biases.map(&name);
            let [both, joined_down] = names.experts_joined_biases.map(&name);
            self.cut(gate, &[count, inner], of(1, one));
            self.cut(up, &[count, inner], of(1, one));
            self.cut(both, &[count, 2 * inner], of(1, &pairs));
            for down in [down, joined_down] {
                self.first_adds(down, &[count, hidden]);
            }
        }
        spec.inner = range.len();
        if let Some(shared) = &mut spec.shared {
            let (mlp, names) = shared.mlp(spec.activation, names);
            let mut mlp = FeedForwardSpec::Gated(mlp);
            self.mlp(&mut mlp, name, &names)?;
            if let FeedForwardSpec::Gated(mlp) = mlp {
                (shared.inner, shared.joined) = (mlp.inner, mlp.joined);
            }
        }
        Ok(())
    }

    fn inner(&self, inner: usize) -> std::result::Result<Range<usize>, String> {
        let range = self.rank.range(inner);
        range.ok_or_else(|| format!("has an MLP of inner size {inner}"))
    }

    fn heads(&self, heads: usize) -> std::result::Result<Range<usize>, String> {
        let range = self.rank.range(heads);
        range.ok_or_else(|| format!("has {heads} heads"))
    }

    /// The short vectors, which all heads read, are made on each rank.
    fn latent(
        &mut self,
        spec: &mut LatentSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let heads = self.heads(spec.heads)?;
        let all = spec.heads;
        let rows = |each: usize| vec![scaled(&heads, each)];
        let q = spec.plain_dim + spec.rotated_dim;
        let (q_name, q_in) = match spec.q_rank {
            None => (names.q, self.hidden),
            Some(rank) => (names.q_b, rank),
        };
        self.rows(&name(q_name), [all * q, q_in], false, rows(q));
        let kv = spec.plain_dim + spec.v_dim;
        let whole = [all * kv, spec.kv_rank];
        self.rows(&name(names.kv_b), whole, false, rows(kv));
        let [k, v] = names.kv_b_split.map(&name);
        let of_heads = Cut::rows(vec![heads.clone()]);
        self.cut(k, &[all, spec.kv_rank, spec.plain_dim], of_heads.clone());
        self.cut(v, &[all, spec.v_dim, spec.kv_rank], of_heads);
        let v = rows(spec.v_dim);
        self.columns(&name(names.o), all * spec.v_dim, spec.bias, v);
        spec.heads = heads.len();
        Ok(())
    }

    fn short_conv(
        &mut self,
        spec: &mut ShortConvSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let (channels, bias) = (spec.channels, spec.bias);
        let Some(range) = self.rank.range(channels) else {
            return Err(format!("has a convolution of {channels} channels"));
        };
        let parts = [range.clone(), range.clone(), range.clone()];
        let rows = joined_rows(Order::Layers, [channels; 3], parts);
        let whole = [3 * channels, self.hidden];
        self.rows(&name(names.conv_in), whole, bias, rows);
        self.conv(
            &name(names.conv),
            channels,
            spec.kernel,
            bias,
            vec![range.clone()],
        );
        self.columns(&name(names.conv_out), channels, bias, vec![range.clone()]);
        spec.channels = range.len();
        Ok(())
    }

    fn delta(
        &mut self,
        spec: &mut DeltaSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let key_heads = self.heads(spec.key_heads)?;
        let (all, hidden) = (spec.value_heads, self.hidden);
        let per_key = all / spec.key_heads;
        // The heads of values that read the rank's heads of keys.
        let value_heads = match spec.form {
            DeltaForm::HuggingFace | DeltaForm::Joined => {
                vec![scaled(&key_heads, per_key)]
            }
            DeltaForm::Gguf => (0..per_key)
                .map(|i| i * spec.key_heads)
                .map(|first| first + key_heads.start..first + key_heads.end)
                .collect(),
        };
        let times = |ranges: &[Range<usize>], by: usize, from: usize| {
            let scaled = ranges
                .iter()
                .map(|r| from + r.start * by..from + r.end * by);
            scaled.collect::<Vec<_>>()
        };
        let (keys, values, channels) = (spec.keys(), spec.values(), spec.channels());
        let key_range = [key_heads.clone()];
        let mut through = times(&key_range, spec.key_dim, 0);
        through.extend(times(&key_range, spec.key_dim, keys));
        through.extend(times(&value_heads, spec.value_dim, 2 * keys));
        let of_values = times(&value_heads, spec.value_dim, 0);
        match spec.form {
            DeltaForm::HuggingFace | DeltaForm::Gguf => {
                for (part, rows, ranges) in [
                    (names.delta_qkv, channels, &through),
                    (names.delta_gate, values, &of_values),
                    (names.delta_share, all, &value_heads),
                    (names.delta_step, all, &value_heads),
                ] {
                    self.rows(&name(part), [rows, hidden], false, ranges.clone());
                }
            }
            // In the order of the heads of keys.
            DeltaForm::Joined => {
                for (part, rows) in [
                    (names.delta_qkvz, channels + values),
                    (names.delta_ba, 2 * all),
                ] {
                    let ranges = times(&key_range, rows / spec.key_heads, 0);
                    self.rows(&name(part), [rows, hidden], false, ranges);
                }
            }
        }
        self.conv(
            &name(names.delta_conv),
            channels,
            spec.kernel,
            false,
            through,
        );
        for part in [names.delta_rate, names.delta_step_bias] {
            self.cut(name(part), &[all], Cut::rows(value_heads.clone()));
        }
        self.columns(&name(names.delta_out), values, false, of_values);
        spec.value_heads = per_key * key_heads.len();
        spec.key_heads = key_heads.len();
        Ok(())
    }

    fn state_space(&mut self, spec: &mut StateSpaceSpec, name: impl Fn(&str) -> String) -> Cutting {
        if spec.norm == StateSpaceNorm::Gated {
            return Err("has a norm over all heads of a state space".into());
        }
        let heads = &mut spec.heads;
        let range = self.heads(heads.count)?;
        // One group is on each rank.
        let groups = match heads.groups {
            1 => 0..1,
            groups => {
                let range = self.rank.range(groups);
                range.ok_or_else(|| format!("has {groups} groups of heads of a state space"))?
            }
        };
        let (inner, vectors) = (heads.inner(), heads.groups * heads.state);
        let name = |part: &str| name(&format!("mamba.{part}"));
        let of_inner = scaled(&range, heads.head_dim);
        let of_vectors = scaled(&groups, heads.state);
        let parts = [&of_inner, &of_vectors, &of_vectors].map(Clone::clone);
        let through = joined_rows(Order::Layers, [inner, vectors, vectors], parts.clone());
        let [x, b, c] = parts;
        let dims = [inner, inner, vectors, vectors, heads.count];
        let parts = [of_inner.clone(), x, b, c, range.clone()];
        let rows = joined_rows(Order::Layers, dims, parts);
        let whole = [dims.iter().sum(), self.hidden];
        self.rows(&name("in_proj"), whole, spec.bias, rows);
        let (kernel, bias) = (spec.kernel, spec.conv_bias);
        self.conv(&name("conv1d"), inner + 2 * vectors, kernel, bias, through);
        for part in ["A_log", "D", "dt_bias"] {
            let cut = Cut::rows(vec![range.clone()]);
            self.cut(name(part), &[heads.count], cut);
        }
        self.columns(&name("out_proj"), inner, spec.bias, vec![of_inner]);
        (heads.count, heads.groups) = (range.len(), groups.len());
        Ok(())
    }

    fn cut(&mut self, name: String, whole: &[usize], cut: Cut) {
        self.cuts.insert(name, (whole.to_vec(), cut));
    }

    /// The channels of a convolution of which each has a separate kernel.
    fn conv(
        &mut self,
        name: &str,
        channels: usize,
        kernel: usize,
        bias: bool,
        ranges: Vec<Range<usize>>,
    ) {
        let cut = Cut::rows(ranges);
        if bias {
            self.cut(format!("{name}.bias"), &[channels], cut.clone());
        }
        self.cut(format!("{name}.weight"), &[channels, 1, kernel], cut);
    }

    /// A bias of what the ranks add up.
    fn first_adds(&mut self, name: String, whole: &[usize]) {
        if self.rank.rank > 0 {
            self.cut(name, whole, Cut::Zeros);
        }
    }

    /// A layer that is divided by outputs.
    fn rows(&mut self, name: &str, whole: [usize; 2], bias: bool, ranges: Vec<Range<usize>>) {
        let cut = Cut::rows(ranges);
        if bias {
            self.cut(format!("{name}.bias"), &whole[..1], cut.clone());
        }
        self.cut(format!("{name}.weight"), &whole, cut);
    }

    /// A layer that is divided by inputs.
    fn columns(&mut self, name: &str, in_dim: usize, bias: bool, ranges: Vec<Range<usize>>) {
        let hidden = self.hidden;
        if bias {
            self.first_adds(format!("{name}.bias"), &[hidden]);
        }
        self.cut(
            format!("{name}.weight"),
            &[hidden, in_dim],
            Cut::columns(ranges),
        );
    }
}

/// The elements of a range of heads of this size.
fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// The factors of these rows, where `outputs` has those of all: a number of rows, and their factor.
fn factors_of(outputs: &[(usize, f64)], rows: &[Range<usize>]) -> Vec<(usize, f64)> {
    let mut found = Vec::new();
    for rows in rows {
        let mut first = 0;
        for (count, factor) in outputs {
            let end = first + count;
            let inside = rows.start.max(first)..rows.end.min(end);
            if !inside.is_empty() {
                found.push((inside.len(), *factor));
            }
            first = end;
        }
    }
    found
}

/// The rows of a joined tensor that are `parts` of its layers, which have `dims` outputs: in the order of the layers.
fn joined_rows<const N: usize>(
    order: Order,
    dims: [usize; N],
    parts: [Range<usize>; N],
) -> Vec<Range<usize>> {
    let groups = match order {
        Order::Layers | Order::Reversed => 1,
        Order::Groups(groups) => groups.max(1),
    };
    let in_group = dims.map(|dim| dim / groups);
    let group: usize = in_group.iter().sum();
    let mut rows = Vec::new();
    for (layer, part) in parts.into_iter().enumerate() {
        let (len, before) = match order {
            Order::Reversed => (in_group[layer], in_group[layer + 1..].iter().sum::<usize>()),
            _ => (in_group[layer], in_group[..layer].iter().sum()),
        };
        let mut start = part.start;
        while start < part.end {
            let (number, inside) = (start / len, start % len);
            let count = (len - inside).min(part.end - start);
            let first = number * group + before + inside;
            rows.push(first..first + count);
            start += count;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn rows_of_joined_layers() {
        let rows = |order, parts| joined_rows(order, [8, 4, 4], parts);
        let half = [4..8, 2..4, 2..4];
        assert_eq!(rows(Order::Layers, half.clone()), [4..8, 10..12, 14..16]);
        assert_eq!(rows(Order::Reversed, half.clone()), [12..16, 6..8, 2..4]);
        // Two groups of 4 + 2 + 2.
        assert_eq!(rows(Order::Groups(2), half), [8..12, 12..14, 14..16]);
        // A part that goes over a group's end.
        assert_eq!(
            rows(Order::Groups(2), [2..6, 0..4, 1..2]),
            [2..4, 8..10, 4..6, 12..14, 7..8]
        );
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn factors_of_rows() {
        let outputs = [(4, 2.), (2, 3.), (2, 5.)];
        assert_eq!(factors_of(&outputs, &[0..8]), outputs);
        assert_eq!(
            factors_of(&outputs, &[2..5, 7..8]),
            [(2, 2.), (1, 3.), (1, 5.)]
        );
        assert_eq!(factors_of(&outputs, &[4..6]), [(2, 3.)]);
    }

    #[test]
    fn heads_of_keys() {
        let kv = |rank, world, heads| Rank { rank, world }.kv_heads(heads);
        assert_eq!(kv(1, 2, 4), Some(2..4));
        let four: Vec<_> = (0..4).map(|rank| kv(rank, 4, 2).unwrap()).collect();
        assert_eq!(four, [0..1, 0..1, 1..2, 1..2]);
        assert_eq!(kv(3, 4, 1), Some(0..1));
        assert_eq!(kv(0, 4, 3), None);
    }
}
