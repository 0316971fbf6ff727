//! What a model keeps of sequences.

use candle_core::{bail, DType, Device, Result, Tensor};

use super::attention::{QUERY, RANK};
use super::{Config, ModelVersion};

/// The state of a sequence in one layer. After a batch of several rows, each tensor has them as a first dimension.
pub struct StatePerLayer {
    /// The input of the recurrence at the last token, `(hidden_size)`.
    pub att_x_prev: Tensor,
    /// The matrices of the heads, `(heads, head_size, head_size)`: values by keys.
    pub att_kv: Tensor,
    /// The input of the feed-forward block at the last token, `(hidden_size)`.
    pub ffn_x_prev: Tensor,
}

/// The state of the attention of [`ModelVersion::V7b`]; it grows with the sequence. After a batch of several rows, each tensor has them as
/// a first dimension.
pub struct DeaState {
    /// The tokens seen; of a batch, those of all rows for one position after another.
    pub token_ids: Vec<u32>,
    /// Inputs of the keys by layer, `(seq_len, 32)`.
    pub k_cache: Vec<Tensor>,
    /// Inputs of the values by layer, `(seq_len, 32)`.
    pub v_cache: Vec<Tensor>,
    /// The query of the last token by layer, `(256)`.
    pub q_prev: Vec<Tensor>,
}

/// The state of a sequence, or of a batch. For another, make a new one.
pub struct State {
    /// By layer.
    pub per_layer: Vec<StatePerLayer>,
    /// State of the attention of [`ModelVersion::V7b`].
    pub dea: Option<DeaState>,
    /// Tokens seen, of each row.
    pub pos: usize,
}

impl State {
    /// That of a sequence which has seen nothing, in f32. Any number of rows can start from it.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the device has no memory for it.
    pub fn new(cfg: &Config, dev: &Device) -> Result<Self> {
        Self::new_with_dtype(cfg, dev, DType::F32)
    }

    /// As [`State::new`], in `dtype`. The matrices of the heads stay f32: what is added to them over a sequence is too small for 16 bits.
    ///
    /// # Errors
    /// As [`State::new`], or the device has no such dtype.
    pub fn new_with_dtype(cfg: &Config, dev: &Device, dtype: DType) -> Result<Self> {
        let (hidden, heads, size) = (cfg.hidden_size, cfg.heads()?, cfg.head_size);
        let layers = 0..cfg.num_hidden_layers;
        let layer = |_| {
            Ok(StatePerLayer {
                att_x_prev: Tensor::zeros(hidden, dtype, dev)?,
                att_kv: Tensor::zeros((heads, size, size), DType::F32, dev)?,
                ffn_x_prev: Tensor::zeros(hidden, dtype, dev)?,
            })
        };
        let per_layer = layers.clone().map(layer).collect::<Result<_>>()?;
        let each = |shape: &[usize]| -> Result<Vec<_>> {
            let zeros = |_| Tensor::zeros(shape, dtype, dev);
            layers.clone().map(zeros).collect()
        };
        let dea = match cfg.version {
            ModelVersion::V7b => Some(DeaState {
                token_ids: Vec::new(),
                k_cache: each(&[0, RANK])?,
                v_cache: each(&[0, RANK])?,
                q_prev: each(&[QUERY])?,
            }),
            _ => None,
        };
        Ok(Self {
            per_layer,
            dea,
            pos: 0,
        })
    }

    pub(super) fn check(&self, layers: usize, version: ModelVersion) -> Result<()> {
        let mut counts = vec![self.per_layer.len()];
        match (&self.dea, version) {
            (Some(dea), ModelVersion::V7b) => {
                counts.extend([dea.k_cache.len(), dea.v_cache.len(), dea.q_prev.len()]);
            }
            (None, ModelVersion::V7b) => {
                bail!(
                    "rwkv_v7: the state was created for a version other than V7b: it has no `dea`"
                )
            }
            _ => {}
        }
        match counts.iter().find(|count| **count != layers) {
            Some(count) => {
                bail!("rwkv_v7: the state has {count} layers, but the model has {layers}")
            }
            None => Ok(()),
        }
    }
}

impl DeaState {
    /// The tokens seen and, after them, `t` of each of `b` rows, by position and row.
    pub(super) fn with(&self, ids: &[u32], b: usize, t: usize) -> Result<Vec<u32>> {
        let mut all = match self.k_cache.first().map(Tensor::dims) {
            Some([seen, _]) if self.token_ids.len() == *seen => {
                let each = self.token_ids.iter().map(|id| vec![*id; b]);
                each.collect::<Vec<_>>().concat()
            }
            Some([rows, seen, _]) if *rows == b && self.token_ids.len() == b * seen => {
                self.token_ids.clone()
            }
            dims => bail!(
                "rwkv_v7: the state has {} token_ids and keys of shape {:?}, which {b} rows cannot continue",
                self.token_ids.len(),
                dims.unwrap_or_default()
            ),
        };
        let positions = (0..t).flat_map(|at| (0..b).map(move |row| row * t + at));
        all.extend(positions.filter_map(|at| ids.get(at)));
        Ok(all)
    }
}

/// The state of `b` rows, `(b, dims)`, from a tensor that has them or one row for all.
pub(super) fn rows(kept: &Tensor, b: usize, dims: &[usize]) -> Result<Tensor> {
    let found = if kept.rank() == dims.len() {
        kept.unsqueeze(0)?
    } else {
        kept.clone()
    };
    let shape: Vec<_> = std::iter::once(b).chain(dims.iter().copied()).collect();
    match found.dims() {
        [rows, rest @ ..] if rest == dims && *rows == b => Ok(found),
        [1, rest @ ..] if rest == dims => found.broadcast_as(shape)?.contiguous(),
        _ => bail!(
            "rwkv_v7: the state has a tensor of shape {:?}, but {b} rows of this model need {shape:?}",
            kept.dims()
        ),
    }
}

/// The state of the rows after a step, in the dtype of the earlier state.
pub(super) fn kept(rows: &Tensor, before: &Tensor) -> Result<Tensor> {
    let rows = rows.to_dtype(before.dtype())?;
    match rows.dim(0)? {
        1 => rows.squeeze(0),
        _ => Ok(rows),
    }
}
