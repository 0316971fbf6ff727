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
use super::super::{AttentionSpec, FeedForwardSpec, Names, Projection, QkNorm};
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
    /// their number, its blocks would be cut, or it has experts, latent attention, a convolution or a recurrence.
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
        let (own, cuts) = share(&spec, group.rank(), group.world_size())?;
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
            MixerSpec::Latent(_) => Err("has latent attention".into()),
            MixerSpec::ShortConv(_) => Err("has a short convolution".into()),
            MixerSpec::Recurrent(_) => Err("has a recurrence".into()),
            MixerSpec::Delta(_) => Err("has a gated delta rule".into()),
            MixerSpec::StateSpace(_) | MixerSpec::Both(..) => Err("has a state space".into()),
        };
        result.or_else(|what: String| refused(&what))?;
        let result = cutter.feed_forward(&mut layer.feed_forward, name, names);
        result.or_else(|what| refused(&what))?;
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
        let Some(q) = self.rank.range(heads) else {
            return Err(format!("has {heads} heads"));
        };
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
        let elements = |heads: &Range<usize>| heads.start * head_dim..heads.end * head_dim;
        let (q_rows, kv_rows) = (elements(&q), elements(&kv));
        let (q_dim, kv_dim) = (spec.q_dim(), spec.kv_dim());
        match spec.joined {
            None => {
                // The gates of each head are interleaved with its queries.
                let per_head = if spec.gate { 2 } else { 1 };
                let gated = q_rows.start * per_head..q_rows.end * per_head;
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
                    let cut = Cut::Rows(vec![rows.clone()]);
                    self.cuts
                        .insert(format!("{}.weight", name(part)), (vec![dim], cut));
                }
            }
        }
        if spec.sinks {
            let cut = Cut::Rows(vec![q.clone()]);
            self.cuts.insert(name(names.sinks), (vec![heads], cut));
        }
        if let Some(slopes) = &mut spec.slopes {
            *slopes = slopes[q.clone()].to_vec();
        }
        self.columns(&name(names.o), q_dim, spec.o_bias, q_rows);
        (spec.heads, spec.kv_heads) = (q.len(), kv.len());
        Ok(())
    }

    fn feed_forward(
        &mut self,
        spec: &mut FeedForwardSpec,
        name: impl Fn(&str) -> String,
        names: &Names,
    ) -> Cutting {
        let hidden = self.hidden;
        let inner = match spec {
            FeedForwardSpec::Gated(mlp) => mlp.inner,
            FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => mlp.inner,
            FeedForwardSpec::Experts(_) => {
                return Err("has experts".into());
            }
        };
        let Some(range) = self.rank.range(inner) else {
            return Err(format!("has an MLP of inner size {inner}"));
        };
        let bias = match spec {
            FeedForwardSpec::Gated(mlp) => {
                match mlp.joined {
                    None => {
                        for part in [names.gate, names.up] {
                            let rows = vec![range.clone()];
                            self.rows(&name(part), [inner, hidden], mlp.bias, rows);
                        }
                    }
                    Some(order) => {
                        let rows = joined_rows(order, [inner; 2], [range.clone(), range.clone()]);
                        self.rows(&name(names.gate_up), [2 * inner, hidden], mlp.bias, rows);
                        mlp.joined = Some(Order::Layers);
                    }
                }
                mlp.inner = range.len();
                mlp.bias
            }
            FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => {
                self.rows(
                    &name(names.up),
                    [inner, hidden],
                    mlp.bias,
                    vec![range.clone()],
                );
                mlp.inner = range.len();
                mlp.bias
            }
            FeedForwardSpec::Experts(_) => false,
        };
        self.columns(&name(names.down), inner, bias, range);
        Ok(())
    }

    /// A layer that is divided by outputs.
    fn rows(&mut self, name: &str, whole: [usize; 2], bias: bool, ranges: Vec<Range<usize>>) {
        let cut = Cut::Rows(ranges);
        if bias {
            let bias = (whole[..1].to_vec(), cut.clone());
            self.cuts.insert(format!("{name}.bias"), bias);
        }
        self.cuts
            .insert(format!("{name}.weight"), (whole.to_vec(), cut));
    }

    /// A layer that is divided by inputs; the first rank adds the bias.
    fn columns(&mut self, name: &str, in_dim: usize, bias: bool, range: Range<usize>) {
        if bias && self.rank.rank > 0 {
            let bias = (vec![self.hidden], Cut::Zeros);
            self.cuts.insert(format!("{name}.bias"), bias);
        }
        let weight = (vec![self.hidden, in_dim], Cut::Columns(range));
        self.cuts.insert(format!("{name}.weight"), weight);
    }
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
    fn heads_of_keys() {
        let kv = |rank, world, heads| Rank { rank, world }.kv_heads(heads);
        assert_eq!(kv(1, 2, 4), Some(2..4));
        let four: Vec<_> = (0..4).map(|rank| kv(rank, 4, 2).unwrap()).collect();
        assert_eq!(four, [0..1, 0..1, 1..2, 1..2]);
        assert_eq!(kv(3, 4, 1), Some(0..1));
        assert_eq!(kv(0, 4, 3), None);
    }
}
