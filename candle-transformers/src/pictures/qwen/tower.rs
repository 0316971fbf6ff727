//! The encoder of Qwen2-VL and Qwen2.5-VL. In most layers of the latter, patches see those of their window alone.

use std::collections::BTreeMap;

use candle_core::{bail, IndexOp, Module, Result, Tensor};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{layer_norm, linear, rms_norm, Activation, Linear, VarBuilder};
use serde_json::Value;

use crate::auto::config::value;
use crate::blocks::encoder::{EncoderLayer, Heads, NormPlace, Seen};
use crate::blocks::vision::patch_grids::{rotation, PatchGrid};
use crate::blocks::{FeedForward, GatedMlp, MergedLinear, Norm, PlainMlp};
use crate::pictures::size;

/// Added to the variance in all norms.
const EPS: f64 = 1e-6;

#[derive(Clone, Debug)]
pub(super) struct TowerSpec {
    depth: usize,
    size: usize,
    heads: usize,
    inner: usize,
    /// Size of the tokens.
    pub(super) out: usize,
    activation: Option<Activation>,
    /// Tokens on a side of a window, and the layers that have none; `None` without windows. Then norms have a mean, and MLPs no gate.
    windows: Option<(usize, Vec<usize>)>,
    theta: f64,
    /// Of patches in pixels, of tokens in patches, of patches in frames.
    sizes: [usize; 3],
}

impl TowerSpec {
    /// From `vision_config`.
    pub(super) fn read(model_type: &str, vision: &Value, sizes: [usize; 3]) -> Result<Self> {
        let [patch, merge, _] = sizes;
        let number = |name: &str, default| size(vision, &[name], Some(default));
        let has_windows = model_type == "qwen2_5_vl";
        let (width, heads) = match has_windows {
            true => (number("hidden_size", 3584)?, number("num_heads", 16)?),
            false => (number("embed_dim", 1280)?, number("num_heads", 16)?),
        };
        if width % heads != 0 || !(width / heads).is_multiple_of(4) {
            bail!(
                "vision_config: {heads} heads of vectors of {width}; expected heads whose size is a multiple of 4, as rotary embedding of \
                 rows and columns requires"
            )
        }
        let windows = match has_windows {
            false => None,
            true => {
                let pixels = number("window_size", 112)?;
                let side = pixels / merge / patch;
                if side == 0 {
                    bail!("vision_config.window_size: {pixels}; expected at least a token of {} pixels", merge * patch)
                }
                let full = match &vision["fullatt_block_indexes"] {
                    Value::Null => vec![7, 15, 23, 31],
                    found => value("vision_config.fullatt_block_indexes", found)?,
                };
                Some((side, full))
            }
        };
        let activation = match (has_windows, vision["hidden_act"].as_str()) {
            (true, None) => Some(Activation::Silu),
            (false, None | Some("quick_gelu")) => None,
            _ => Some(value("vision_config.hidden_act", &vision["hidden_act"])?),
        };
        let theta = &vision["rope_parameters"]["rope_theta"];
        Ok(Self {
            depth: number("depth", 32)?,
            size: width,
            heads,
            inner: match has_windows {
                true => number("intermediate_size", 3420)?,
                false => width.saturating_mul(number("mlp_ratio", 4)?),
            },
            out: match has_windows {
                true => number("out_hidden_size", 3584)?,
                false => number("hidden_size", 3584)?,
            },
            activation,
            windows,
            theta: match theta {
                Value::Null => 10_000.,
                theta => value("vision_config.rope_parameters.rope_theta", theta)?,
            },
            sizes,
        })
    }

    fn norm(&self, size: usize, vb: VarBuilder) -> Result<Norm> {
        Ok(match self.windows {
            Some(_) => rms_norm(size, EPS, vb)?.into(),
            None => layer_norm(size, EPS, vb)?.into(),
        })
    }

    fn mlp(&self, vb: VarBuilder) -> Result<FeedForward> {
        let (size, inner) = (self.size, self.inner);
        let layer = |from, to, name| linear(from, to, vb.pp(name));
        Ok(match (&self.windows, self.activation) {
            (Some(_), activation) => FeedForward::Gated(GatedMlp::new(
                MergedLinear::new([
                    layer(size, inner, "gate_proj")?,
                    layer(size, inner, "up_proj")?,
                ])?,
                layer(inner, size, "down_proj")?.into(),
                activation.unwrap_or(Activation::Silu).try_into()?,
            )),
            (None, activation) => {
                let up = layer(size, inner, "fc1")?.into();
                let down = layer(inner, size, "fc2")?.into();
                FeedForward::Plain(match activation {
                    Some(activation) => PlainMlp::new(up, down, activation),
                    None => PlainMlp::quick_gelu(up, down),
                })
            }
        })
    }

    fn layer(&self, vb: VarBuilder) -> Result<EncoderLayer> {
        let (size, attn) = (self.size, vb.pp("attn"));
        let qkv = linear(size, 3 * size, attn.pp("qkv"))?;
        let qkv = MergedLinear::joined(qkv.into(), [size; 3]);
        let norm = |name| self.norm(size, vb.pp(name)).map(Some);
        Ok(EncoderLayer {
            heads: Heads::new(qkv, self.heads, size / self.heads),
            joined: linear(size, size, attn.pp("proj"))?.into(),
            mlp: self.mlp(vb.pp("mlp"))?,
            place: NormPlace::Before,
            norms: [norm("norm1")?, norm("norm2")?],
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tower {
    spec: TowerSpec,
    patches: Linear,
    layers: Vec<EncoderLayer>,
    norm: Norm,
    up: Linear,
    down: Linear,
}

impl Tower {
    /// Loads `patch_embed.proj`, `blocks.N` and `merger`.
    pub(super) fn load(spec: &TowerSpec, vb: VarBuilder) -> Result<Self> {
        let [patch, merge, frames] = spec.sizes;
        // A convolution whose kernel is the whole patch.
        let kernel = vb.pp("patch_embed.proj");
        let kernel = kernel.get((spec.size, 3, frames, patch, patch), "weight")?;
        let layers = (0..spec.depth).map(|i| spec.layer(vb.pp("blocks").pp(i)));
        let (square, merger) = (spec.size * merge * merge, vb.pp("merger"));
        Ok(Self {
            patches: Linear::new(kernel.flatten_from(1)?, None),
            layers: layers.collect::<Result<_>>()?,
            norm: spec.norm(spec.size, merger.pp("ln_q"))?,
            up: linear(square, square, merger.pp("mlp.0"))?,
            down: linear(square, spec.out, merger.pp("mlp.2"))?,
            spec: spec.clone(),
        })
    }

    /// From the patches of an image, `(patches, numbers)`, in squares, to its tokens: `(tokens, out)`.
    pub(super) fn forward(&self, patches: &Tensor, grid: &PatchGrid) -> Result<Tensor> {
        let [_, merge, _] = self.spec.sizes;
        let (size, merged) = (self.spec.size, merge * merge);
        let mut xs = self.patches.forward(patches)?;
        let mut places = grid.places(merge);
        let windows = self.spec.windows.as_ref();
        let windows = windows.map(|(side, _)| Windows::new(&grid.merged(merge), *side));
        let device = xs.device().clone();
        if let Some(windows) = &windows {
            let order = Tensor::new(windows.order.as_slice(), &device)?;
            let tokens = xs.reshape(((), merged * size))?;
            xs = tokens.index_select(&order, 0)?.reshape(((), size))?;
            let of_token = |token: &u32| &places[*token as usize * merged..][..merged];
            places = windows.order.iter().flat_map(of_token).copied().collect();
        }
        let head_dim = size / self.spec.heads;
        let angles = rotation(&places, head_dim, self.spec.theta, xs.dtype(), &device)?;
        let all = [Group {
            count: 1,
            tokens: places.len() / merged,
        }];
        let full = self.spec.windows.as_ref().map(|(_, full)| full);
        for (i, layer) in self.layers.iter().enumerate() {
            let groups = match (&windows, full) {
                (Some(windows), Some(full)) if !full.contains(&i) => &windows.groups[..],
                _ => &all[..],
            };
            xs = in_groups(layer, &xs, &angles, groups, merged)?;
        }
        let squares = self.norm.forward(&xs)?.reshape(((), merged * size))?;
        let inner = self.up.forward(&squares)?.gelu_erf()?;
        let tokens = self.down.forward(&inner)?;
        match windows {
            Some(windows) => tokens.index_select(&Tensor::new(windows.back(), &device)?, 0),
            None => Ok(tokens),
        }
    }
}

/// Windows of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    count: usize,
    /// Of each.
    tokens: usize,
}

/// The windows of a grid of tokens. Those at its end are smaller.
#[derive(Debug)]
struct Windows {
    groups: Vec<Group>,
    /// The tokens, window by window and group by group.
    order: Vec<u32>,
}

impl Windows {
    fn new(grid: &PatchGrid, side: usize) -> Self {
        let bands = |len: usize| {
            (0..len)
                .step_by(side)
                .map(move |at| (at, side.min(len - at)))
        };
        let mut by_shape: BTreeMap<[usize; 2], Vec<[usize; 2]>> = BTreeMap::new();
        for (row, rows) in bands(grid.rows) {
            for (column, columns) in bands(grid.columns) {
                by_shape
                    .entry([rows, columns])
                    .or_default()
                    .push([row, column]);
            }
        }
        let (mut groups, mut order) = (Vec::new(), Vec::new());
        for ([rows, columns], windows) in by_shape {
            groups.push(Group {
                count: windows.len(),
                tokens: rows * columns,
            });
            for [row, column] in windows {
                let line = |row: usize| (0..columns).map(move |i| row * grid.columns + column + i);
                let tokens = (row..row + rows).flat_map(line);
                order.extend(tokens.map(|token| token as u32));
            }
        }
        Self { groups, order }
    }

    /// Where each token of the grid is in the order.
    fn back(&self) -> Vec<u32> {
        let mut back = vec![0; self.order.len()];
        for (at, token) in (0..).zip(&self.order) {
            back[*token as usize] = at;
        }
        back
    }
}

/// A layer in which the patches of a window see each other: `(patches, size)` to the same shape.
fn in_groups(
    layer: &EncoderLayer,
    xs: &Tensor,
    (cos, sin): &(Tensor, Tensor),
    groups: &[Group],
    merged: usize,
) -> Result<Tensor> {
    let mut start = 0;
    let run = |group: &Group| {
        let (count, len) = (group.count, group.tokens * merged);
        let part = |xs: &Tensor| xs.i(start..start + count * len)?.reshape((count, len, ()));
        let angles = (part(cos)?, part(sin)?);
        let seen = Seen {
            rotation: Some((&angles, Pairs::Halves)),
            ..Seen::default()
        };
        let ys = layer.forward(part(xs)?, &seen)?;
        start += count * len;
        ys.flatten_to(1)
    };
    let parts = groups.iter().map(run).collect::<Result<Vec<_>>>()?;
    match parts.as_slice() {
        [one] => Ok(one.clone()),
        parts => Tensor::cat(parts, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_the_ends_are_smaller() {
        let grid = PatchGrid {
            frames: 1,
            rows: 3,
            columns: 5,
        };
        let windows = Windows::new(&grid, 2);
        let group = |count, tokens| Group { count, tokens };
        assert_eq!(
            windows.groups,
            [group(1, 1), group(2, 2), group(1, 2), group(2, 4)]
        );
        assert_eq!(
            windows.order,
            [14, 10, 11, 12, 13, 4, 9, 0, 1, 5, 6, 2, 3, 7, 8]
        );
        let back = windows.back();
        assert!((0..15u32).all(|at| windows.order[back[at as usize] as usize] == at));
        assert_eq!(Windows::new(&grid, 9).groups, [group(1, 15)]);
    }
}
