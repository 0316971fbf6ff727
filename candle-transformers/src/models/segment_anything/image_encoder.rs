//! The encoder of images: a vision transformer whose attention is within windows in most blocks, with relative positions, as in
//! [ViTDet](https://arxiv.org/abs/2203.16527).

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, linear_b, Activation, LayerNorm, VarBuilder};

use super::{MlpBlock, Neck, EPS, FAMILY};
use crate::blocks::vision::{side, PatchEmbedding, Picture, VitAttention, VitSpec, Windows};

/// Relative position biases of scores, by the distance in rows and in columns.
///
/// The bias is `q · rows[distance] + q · columns[distance]`, a number for each query and each row, and for each query and each column. They
/// are appended to the query, and to a key a 1 at its row and its column, so that the product of both includes the bias: attention needs no
/// separate bias, which would be as large as all scores.
#[derive(Debug)]
struct RelativePositions {
    /// (2 * side - 1, head_dim)
    rows: Tensor,
    columns: Tensor,
    /// The tables' row for each pair of positions along a side, (side * side).
    distances: Tensor,
    /// Appended to keys, (1, 1, side * side, 2 * side).
    places: Tensor,
    side: usize,
}

impl RelativePositions {
    fn load(side: usize, head_dim: usize, vb: &VarBuilder) -> Result<Self> {
        let table = |name| vb.get((2 * side - 1, head_dim), name);
        let distance = |i: usize| (i / side + side - 1 - i % side) as u32;
        let distances = (0..side * side).map(distance).collect::<Vec<_>>();
        Ok(Self {
            rows: table("rel_pos_h")?,
            columns: table("rel_pos_w")?,
            distances: Tensor::from_vec(distances, side * side, vb.device())?,
            places: places(side, vb.device())?.to_dtype(vb.dtype())?,
            side,
        })
    }

    /// Queries and keys, (batch, heads, side * side, head_dim), with what the positions add to their product over the root of `head_dim`.
    fn turn(&self, q: Tensor, k: Tensor) -> Result<(Tensor, Tensor)> {
        let (b, heads, tokens, head_dim) = q.dims4()?;
        let (n, side) = (b * heads, self.side);
        let by_place = q.reshape((n, side, side, head_dim))?;
        let of_rows = self.gains(&self.rows, &by_place.transpose(0, 1)?)?;
        let of_columns = self.gains(&self.columns, &by_place.permute((2, 0, 1, 3))?)?;
        let dims = (b, heads, tokens, side);
        let of_rows = of_rows.transpose(0, 1)?.reshape(dims)?;
        let of_columns = of_columns.permute((1, 2, 0, 3))?.reshape(dims)?;
        let q = Tensor::cat(&[&q, &of_rows, &of_columns], 3)?;
        let places = self.places.expand((b, heads, tokens, 2 * side))?;
        Ok((q, Tensor::cat(&[&k, &places], 3)?))
    }

    /// Queries times the entries of `table` for their distance to each position along a side: from (side, n, side, head_dim), the side in
    /// question first, to (side, n, side, side). Times the root of `head_dim`, by which attention divides.
    fn gains(&self, table: &Tensor, queries: &Tensor) -> Result<Tensor> {
        let (side, n, _, head_dim) = queries.dims4()?;
        let table = table.index_select(&self.distances, 0)?;
        let table = (table * (head_dim as f64).sqrt())?;
        let table = table.reshape((side, side, head_dim))?.transpose(1, 2)?;
        let queries = queries.reshape((side, n * side, head_dim))?;
        queries.matmul(&table)?.reshape((side, n, side, side))
    }
}

/// For each position of a square a 1 at its row, followed by a 1 at its column.
fn places(side: usize, device: &Device) -> Result<Tensor> {
    let mut ones = vec![0f32; side * side * 2 * side];
    for (i, place) in ones.chunks_exact_mut(2 * side).enumerate() {
        place[i / side] = 1.;
        place[side + i % side] = 1.;
    }
    Tensor::from_vec(ones, (1, 1, side * side, 2 * side), device)
}

#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    attention: VitAttention,
    positions: Option<RelativePositions>,
    /// The windows; `None` for attention between all positions.
    windows: Option<Windows>,
    norm2: LayerNorm,
    mlp: MlpBlock,
}

impl Block {
    /// `places` is the side of the image in patches.
    fn load(
        spec: &VitSpec,
        qkv_bias: bool,
        use_rel_pos: bool,
        windows: Option<Windows>,
        places: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (size, vb_attention) = (spec.size, vb.pp("attn"));
        let head_dim = spec.head_dim(FAMILY)?;
        let side = windows.map_or(places, |windows| windows.side);
        let positions = || RelativePositions::load(side, head_dim, &vb_attention);
        Ok(Self {
            norm1: layer_norm(size, EPS, vb.pp("norm1"))?,
            positions: use_rel_pos.then(positions).transpose()?,
            attention: VitAttention::joined(
                linear_b(size, 3 * size, qkv_bias, vb_attention.pp("qkv"))?,
                linear(size, size, vb_attention.pp("proj"))?,
                spec.heads,
            ),
            windows,
            norm2: layer_norm(size, EPS, vb.pp("norm2"))?,
            mlp: MlpBlock::new(size, spec.inner, Activation::Gelu, vb.pp("mlp"))?,
        })
    }

    fn attend(&self, xs: &Tensor) -> Result<Tensor> {
        self.attention
            .forward_turned(xs, None, |q, k| match &self.positions {
                Some(positions) => positions.turn(q, k),
                None => Ok((q, k)),
            })
    }

    /// From (batch, rows * columns, size) to the same shape.
    fn forward(&self, xs: &Tensor, [rows, columns]: [usize; 2]) -> Result<Tensor> {
        let (b, tokens, size) = xs.dims3()?;
        let normed = self.norm1.forward(xs)?;
        let ys = match self.windows {
            Some(windows) => {
                let places = normed.reshape((b, rows, columns, size))?;
                let ys = self.attend(&windows.split(&places)?)?;
                let ys = windows.join(&ys, [b, rows, columns])?;
                ys.reshape((b, tokens, size))?
            }
            None => self.attend(&normed)?,
        };
        let xs = (xs + ys)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys
    }
}

/// The encoder of Segment Anything's larger models.
#[derive(Debug)]
pub struct ImageEncoderViT {
    patches: PatchEmbedding,
    /// (1, patches, embed_dim)
    positions: Option<Tensor>,
    blocks: Vec<Block>,
    neck: Neck,
}

impl ImageEncoderViT {
    /// Loads `patch_embed.proj`, `pos_embed` if `use_abs_pos`, `depth` blocks `blocks.N`, with `attn.rel_pos_h` and `attn.rel_pos_w` if
    /// `use_rel_pos`, and `neck`, from which `out_chans` channels come.
    ///
    /// Images have sides of `img_size` pixels and `in_chans` channels, a patch has sides of `patch_size`. Attention is within windows of
    /// `window_size` patches a side, except in the blocks `global_attn_indexes`, and in all of them if it is 0.
    ///
    /// # Errors
    /// `num_heads` does not divide `embed_dim`, a patch is larger than the image, or a weight is missing or has another shape.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        img_size: usize,
        patch_size: usize,
        in_chans: usize,
        embed_dim: usize,
        depth: usize,
        num_heads: usize,
        out_chans: usize,
        qkv_bias: bool,
        use_rel_pos: bool,
        use_abs_pos: bool,
        window_size: usize,
        global_attn_indexes: &[usize],
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = VitSpec::new(embed_dim, num_heads, EPS);
        let side = side(FAMILY, img_size, patch_size)?;
        let picture = Picture {
            channels: in_chans,
            size: Some((img_size, img_size)),
            ..Picture::any(FAMILY)
        };
        let block = |i| {
            let global = window_size == 0 || global_attn_indexes.contains(&i);
            let windows = (!global).then_some(Windows { side: window_size });
            let vb = vb.pp("blocks").pp(i);
            Block::load(&spec, qkv_bias, use_rel_pos, windows, side, vb)
        };
        let positions = || {
            let table = vb.get((1, side, side, embed_dim), "pos_embed")?;
            table.reshape((1, side * side, embed_dim))
        };
        let vb_patches = vb.pp("patch_embed").pp("proj");
        Ok(Self {
            patches: PatchEmbedding::load(picture, patch_size, embed_dim, vb_patches)?,
            positions: use_abs_pos.then(positions).transpose()?,
            blocks: (0..depth).map(block).collect::<Result<_>>()?,
            neck: Neck::load(embed_dim, out_chans, vb.pp("neck"))?,
        })
    }
}

/// From (batch, in_chans, img_size, img_size) to (batch, out_chans, side, side), the side in patches.
impl Module for ImageEncoderViT {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (mut xs, [rows, columns]) = self.patches.forward(xs)?;
        if let Some(positions) = &self.positions {
            xs = xs.broadcast_add(positions)?;
        }
        for block in &self.blocks {
            xs = block.forward(&xs, [rows, columns])?;
        }
        let (b, _, size) = xs.dims3()?;
        let places = xs.transpose(1, 2)?.reshape((b, size, rows, columns))?;
        self.neck.forward(&places)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// Against the formula, number by number.
    #[test]
    fn products_have_the_gains_of_positions() -> Result<()> {
        let (n, side, size) = (2, 3, 4);
        let device = Device::Cpu;
        let numbers = |count: usize, factor: f64| -> Result<Tensor> {
            let numbers = Tensor::arange(0u32, count as u32, &device)?.to_dtype(DType::F64)?;
            (numbers * factor)?.sin()
        };
        let tables = [0.7, 1.3].map(|factor| numbers((2 * side - 1) * size, factor));
        let [rows, columns] = tables.map(|table| table?.reshape((2 * side - 1, size)));
        let map = std::collections::HashMap::from([
            ("rel_pos_h".to_string(), rows?),
            ("rel_pos_w".to_string(), columns?),
        ]);
        let vb = VarBuilder::from_tensors(map.clone(), DType::F64, &device);
        let positions = RelativePositions::load(side, size, &vb)?;
        let dims = (1, n, side * side, size);
        let q = numbers(n * side * side * size, 0.9)?.reshape(dims)?;
        let k = numbers(n * side * side * size, 1.7)?.reshape(dims)?;
        let (turned_q, turned_k) = positions.turn(q.clone(), k.clone())?;
        let products = turned_q.matmul(&turned_k.t()?)?.get(0)?.to_vec3::<f64>()?;

        let [rows, columns] = ["rel_pos_h", "rel_pos_w"].map(|name| map[name].to_vec2::<f64>());
        let (rows, columns) = (rows?, columns?);
        let (q, k) = (q.get(0)?.to_vec3::<f64>()?, k.get(0)?.to_vec3::<f64>()?);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for head in 0..n {
            for (i, q) in q[head].iter().enumerate() {
                for (j, k) in k[head].iter().enumerate() {
                    let row = &rows[i / side + side - 1 - j / side];
                    let column = &columns[i % side + side - 1 - j % side];
                    let expected =
                        dot(q, k) + (size as f64).sqrt() * (dot(q, row) + dot(q, column));
                    assert!((products[head][i][j] - expected).abs() < 1e-12);
                }
            }
        }
        Ok(())
    }
}
