//! The gated delta rule, of Qwen3.5 and Qwen3-Next: [arXiv 2412.06464](https://arxiv.org/abs/2412.06464). A position corrects the state's
//! answer to its key, instead of adding to it.

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::ops::{self, sigmoid, GatedActivation};
use candle_nn::{Activation, Init};

use super::feed_forward::linear;
use super::recurrence::{softplus, wide};
use super::recurrent::Conv;
use super::weights::{Order, Weights};
use super::{MergedLinear, Names, Norm, Projection, RecurrentState, Residual};

/// Positions of a prompt that are computed together.
const CHUNK: usize = 64;

/// Added to the sum of squares of a query or key before its root is taken.
const UNIT_EPS: f64 = 1e-6;

/// A mixer before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Dimension of a head of queries or keys.
    pub key_dim: usize,
    /// Dimension of a head of values.
    pub value_dim: usize,
    /// Kernel size of the convolution before it, in tokens.
    pub kernel: usize,
    /// The activation of the convolution's results.
    pub activation: Activation,
    /// RMS norm epsilon of the results' norm.
    pub norm_eps: f64,
    /// The layout of the weights in files.
    pub form: DeltaForm,
}

/// The layout of the weights of the gated delta rule in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaForm {
    /// Neighbouring value heads share a key head, and the logarithm of the decay is `-e^a` of the `a` in the file.
    HuggingFace,
    /// As llama.cpp's converter writes Qwen3.5: value head `i` reads key head `i % key_heads`, and the file has the logarithm of the decay.
    Gguf,
    /// As [`HuggingFace`](Self::HuggingFace), with each key head's queries, keys, values and gates in one tensor, and its shares and steps in
    /// another (Qwen3-Next).
    Joined,
}

impl DeltaSpec {
    /// The size of all queries, and of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads.saturating_mul(self.key_dim)
    }

    /// The size of all values.
    pub fn values(&self) -> usize {
        self.value_heads.saturating_mul(self.value_dim)
    }

    /// Number of channels of the convolution.
    pub fn channels(&self) -> usize {
        self.keys().saturating_mul(2).saturating_add(self.values())
    }

    /// Checks what the layers take for granted.
    pub(super) fn check(&self) -> Result<()> {
        let (keys, values) = (self.key_heads, self.value_heads);
        if keys == 0 || values == 0 || self.key_dim == 0 || self.value_dim == 0 {
            bail!(
                "gated delta rule: {keys} key heads of size {} and {values} value heads of size {}; each must be at least 1",
                self.key_dim,
                self.value_dim
            )
        }
        if !values.is_multiple_of(keys) {
            bail!("gated delta rule: {values} value heads cannot be grouped over {keys} key heads")
        }
        if self.kernel == 0 {
            bail!("gated delta rule: the convolution's kernel size is 0; it must be at least 1")
        }
        Ok(())
    }
}

/// A mixer whose state maps keys to values.
#[derive(Debug, Clone)]
pub struct Delta {
    /// To what goes through the convolution, to the gate of the results, and for each value head to how much is written and to the decay.
    inputs: MergedLinear<4>,
    conv: Conv,
    /// The logarithm of the decay for a step of size 1, `(value_heads)`.
    rate: Tensor,
    /// Added to the step's size, `(value_heads)`.
    step_bias: Tensor,
    /// The weight with which an RMS norm is the division by the length, `(key_dim)`.
    unit: Tensor,
    /// `(value_dim)`.
    norm: Tensor,
    output: Projection,
    spec: DeltaSpec,
}

impl Delta {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &DeltaSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let (channels, values, heads) = (spec.channels(), spec.values(), spec.value_heads);
        let part = |name, out_dim| linear(prefix, name, hidden, out_dim, false);
        let inputs = match spec.form {
            DeltaForm::HuggingFace | DeltaForm::Gguf => {
                let parts = [
                    part(names.delta_qkv, channels),
                    part(names.delta_gate, values),
                    part(names.delta_share, heads),
                    part(names.delta_step, heads),
                ];
                weights.merged(parts).await?
            }
            DeltaForm::Joined => {
                let (keys, order) = (spec.keys(), Order::Groups(spec.key_heads));
                let first = part(names.delta_qkvz, channels + values);
                let first = weights.in_layers(&first, [keys, keys, values, values], order);
                let first = first.await?;
                let second = part(names.delta_ba, 2 * heads);
                let second = weights.in_layers(&second, [heads, heads], order).await?;
                let dims = [channels, values, heads, heads];
                weights.merged_in_layers(vec![first, second], dims)?
            }
        };
        let conv = format!("{prefix}.{}", names.delta_conv);
        let conv = Conv::load(weights, &conv, channels, spec.kernel, false).await?;
        // Sums over a sequence are too coarse in 16 bits, and so are these.
        let wide = wide(weights.dtype());
        let zeros = Init::Const(0.);
        let name = format!("{prefix}.{}", names.delta_rate);
        let rate = weights.dense_as(wide, &name, &[heads], zeros).await?;
        let rate = match spec.form {
            DeltaForm::HuggingFace | DeltaForm::Joined => rate.exp()?.neg()?,
            DeltaForm::Gguf => rate,
        };
        let name = format!("{prefix}.{}", names.delta_step_bias);
        let step_bias = weights.dense_as(wide, &name, &[heads], zeros).await?;
        let name = format!("{prefix}.{}.weight", names.delta_norm);
        let ones = Init::Const(1.);
        let norm = weights
            .dense_as(wide, &name, &[spec.value_dim], ones)
            .await?;
        let output = linear(prefix, names.delta_out, values, hidden, false);
        let output = weights.linear(&output).await?;
        let unit = (spec.key_dim as f64).powf(-0.5) as f32;
        let unit = Tensor::full(unit, (), weights.device())?.to_dtype(wide)?;
        let unit = unit.broadcast_as(spec.key_dim)?;
        Ok(Self {
            inputs,
            conv,
            rate,
            step_bias,
            unit: if weights.is_check() {
                unit
            } else {
                unit.contiguous()?
            },
            norm,
            output,
            spec: spec.clone(),
        })
    }

    /// The projection back to the stream, which comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.output
    }

    /// The input of the output projection, `(b, t, value_heads * value_dim)`, for the norm of the stream, `(b, t, hidden_size)`, or for the
    /// stream if there is no norm. Without a state the positions are the whole sequence.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        state: Option<&mut RecurrentState>,
    ) -> Result<(Residual, Tensor)> {
        let mut fresh = RecurrentState::default();
        let state = state.unwrap_or(&mut fresh);
        let (xs, [through, gate, share, step]) = self.project(xs, norm)?;
        let (b, t, _) = through.dims3()?;
        let (dtype, wide) = (through.dtype(), self.unit.dtype());
        let (heads, dim) = (self.spec.value_heads, self.spec.value_dim);

        let mixed = self.conv.forward(&through, &mut state.parts[0])?;
        let mixed = self.spec.activation.forward(&mixed)?;
        let keys = self.spec.keys();
        let (q, k) = self.queries_and_keys(&mixed.narrow(D::Minus1, 0, 2 * keys)?)?;
        let v = mixed.narrow(D::Minus1, 2 * keys, heads * dim)?;
        // From `(b, t, heads, n)` to `(b * heads, t, n)`.
        let by_head = |xs: &Tensor| {
            let xs = xs.reshape((b, t, heads, ()))?.transpose(1, 2)?;
            xs.reshape((b * heads, t, ()))
        };
        let step = softplus(&step.to_dtype(wide)?.broadcast_add(&self.step_bias)?)?;
        let rule = Rule {
            q,
            k,
            v: by_head(&v.to_dtype(wide)?)?,
            share: by_head(&share.to_dtype(wide)?)?,
            decay: by_head(&step.broadcast_mul(&self.rate)?)?,
        };
        let ys = rule.run(&mut state.parts[1])?;
        state.seen += t;

        let ys = ys.reshape((b, heads, t, dim))?.transpose(1, 2)?;
        let gate = gate.reshape((b, t, heads, dim))?.to_dtype(wide)?;
        // The queries are unit vectors here, and should have been divided by the root of their size: the norm divides that out, but for what
        // it adds to the mean square.
        let eps = self.spec.norm_eps * self.spec.key_dim as f64;
        let ys = ops::norm_gate(&ys, ops::Norm::rms(&self.norm, eps as f32), &gate)?;
        Ok((xs, ys.reshape((b, t, heads * dim))?.to_dtype(dtype)?))
    }

    fn project(&self, xs: Residual, norm: Option<&Norm>) -> Result<(Residual, [Tensor; 4])> {
        let Some(merged) = self.inputs.merged() else {
            let (xs, normed) = xs.normed(norm)?;
            return Ok((xs, self.inputs.forward(&normed)?));
        };
        let (xs, all) = xs.project(norm, merged)?;
        let (channels, values) = (self.spec.channels(), self.spec.values());
        let heads = self.spec.value_heads;
        let part = |start, len| all.narrow(D::Minus1, start, len);
        let parts = [
            part(0, channels)?,
            part(channels, values)?,
            part(channels + values, heads)?,
            part(channels + values + heads, heads)?,
        ];
        Ok((xs, parts))
    }

    /// Unit vectors for each value head, `(b * value_heads, t, key_dim)` each, of `(b, t, 2 * key_heads * key_dim)`.
    fn queries_and_keys(&self, both: &Tensor) -> Result<(Tensor, Tensor)> {
        let (b, t, _) = both.dims3()?;
        let DeltaSpec {
            key_heads,
            value_heads,
            key_dim,
            form,
            ..
        } = self.spec;
        let repeats = value_heads / key_heads;
        let both = both.reshape((b, t, 2 * key_heads, key_dim))?;
        let both = both.to_dtype(self.unit.dtype())?;
        let eps = UNIT_EPS / key_dim as f64;
        let both = ops::rms_norm(&both, &self.unit, eps as f32)?;
        let each = |i: usize| {
            let part = both.narrow(2, i * key_heads, key_heads)?.transpose(1, 2)?;
            let (one_per_key, all) = match form {
                DeltaForm::HuggingFace | DeltaForm::Joined => {
                    (part.unsqueeze(2)?, (b, key_heads, repeats, t, key_dim))
                }
                DeltaForm::Gguf => (part.unsqueeze(1)?, (b, repeats, key_heads, t, key_dim)),
            };
            one_per_key
                .broadcast_as(all)?
                .reshape((b * value_heads, t, key_dim))
        };
        Ok((each(0)?, each(1)?))
    }
}

/// Queries, corrections and decays of the positions, for each head: `(n, t, ..)`.
struct Rule {
    /// The queries of the state, `(n, t, k)`.
    q: Tensor,
    /// The keys, `(n, t, k)`.
    k: Tensor,
    /// The desired answers to the keys, `(n, t, v)`.
    v: Tensor,
    /// Its sigmoid is how far the state is corrected, `(n, t, 1)`.
    share: Tensor,
    /// The logarithm of what is left of the state at each position, not above 0: `(n, t, 1)`.
    decay: Tensor,
}

impl Rule {
    /// `S = e^decay S`, `S = S + k^T sigmoid(share) (v - k S)` and `q S` for each position, in chunks. `state` is `(n, k, v)`, or
    /// nothing before the first, and becomes that after the last; the outputs are `(n, t, v)`.
    fn run(&self, state: &mut Option<Tensor>) -> Result<Tensor> {
        let (n, t, key_dim) = self.q.dims3()?;
        let mut kept = match state.take() {
            Some(kept) => kept,
            None => {
                let shape = (n, key_dim, self.v.dim(2)?);
                Tensor::zeros(shape, self.v.dtype(), self.v.device())?
            }
        };
        let (whole, rest) = (t / CHUNK, t % CHUNK);
        let mut outputs = Vec::with_capacity(whole + 1);
        if whole > 0 {
            let part = self.part(0, whole * CHUNK)?;
            part.chunks(CHUNK, &mut kept, &mut outputs)?;
        }
        match rest {
            0 => {}
            1 => outputs.push(self.part(t - 1, 1)?.position(&mut kept)?),
            rest => self
                .part(t - rest, rest)?
                .chunks(rest, &mut kept, &mut outputs)?,
        }
        *state = Some(kept);
        match outputs.as_slice() {
            [ys] => Ok(ys.clone()),
            _ => Tensor::cat(&outputs, 1),
        }
    }

    fn part(&self, start: usize, len: usize) -> Result<Self> {
        let part = |xs: &Tensor| xs.narrow(1, start, len);
        Ok(Self {
            q: part(&self.q)?,
            k: part(&self.k)?,
            v: part(&self.v)?,
            share: part(&self.share)?,
            decay: part(&self.decay)?,
        })
    }

    /// A single position.
    fn position(&self, state: &mut Tensor) -> Result<Tensor> {
        let decayed = state.broadcast_mul(&self.decay.exp()?)?;
        let wrong = (&self.v - self.k.matmul(&decayed)?)?;
        let share = self.share.broadcast_as(wrong.shape())?;
        // One kernel, where a separate sigmoid takes several.
        let wrong = ops::act_mul(&share, &wrong, GatedActivation::Sigmoid)?;
        *state = (decayed + self.k.transpose(1, 2)?.broadcast_mul(&wrong)?)?;
        self.q.matmul(state)
    }

    /// Chunks of `len` positions, which are all of them. What a position writes depends on what those before it write: within a chunk that is
    /// a triangular system, which is solved for all chunks together, and only the state goes from chunk to chunk.
    fn chunks(&self, len: usize, state: &mut Tensor, outputs: &mut Vec<Tensor>) -> Result<()> {
        let (n, t, _) = self.q.dims3()?;
        let count = t / len;
        let split = |xs: &Tensor| xs.reshape((n, count, len, ()));
        let (q, k, v) = (split(&self.q)?, split(&self.k)?, split(&self.v)?);
        let share = split(&sigmoid(&self.share)?)?;
        let triangle = Triangle::new(len, q.dtype(), q.device())?;
        // What is left, at each position, of what was there before the chunk.
        let left = self.decay.reshape((n, count, len))?.cumsum(2)?;
        let left = left.unsqueeze(3)?;
        let between = left.broadcast_sub(&left.transpose(2, 3)?)?;
        let between = between.broadcast_add(&triangle.hidden)?.exp()?;
        let keys = k.transpose(2, 3)?;
        let system = (k.matmul(&keys)? * &between)?.broadcast_mul(&share)?;
        let solved = triangle.inverse(&system)?;
        let since = left.exp()?;
        let written = solved.matmul(&v.broadcast_mul(&share)?)?;
        let asked = k.broadcast_mul(&share)?.broadcast_mul(&since)?;
        let asked = solved.matmul(&asked)?;
        let scores = (q.matmul(&keys)? * between)?;
        let q = q.broadcast_mul(&since)?;
        let total = left.narrow(2, len - 1, 1)?;
        let k = k.broadcast_mul(&total.broadcast_sub(&left)?.exp()?)?;
        let k = k.transpose(2, 3)?;
        let total = total.exp()?;
        for chunk in 0..count {
            let of_chunk = |xs: &Tensor| xs.narrow(1, chunk, 1)?.squeeze(1);
            let asked = of_chunk(&asked)?.matmul(state)?;
            let written = (of_chunk(&written)? - asked)?;
            let before = of_chunk(&q)?.matmul(state)?;
            outputs.push((before + of_chunk(&scores)?.matmul(&written)?)?);
            let decayed = state.broadcast_mul(&of_chunk(&total)?)?;
            *state = (decayed + of_chunk(&k)?.matmul(&written)?)?;
        }
        Ok(())
    }
}

/// Constants that depend on the size of a chunk alone, `(len, len)` each.
struct Triangle {
    /// 0 where position `i` sees `j`, itself among them, minus infinity elsewhere.
    hidden: Tensor,
    /// The diagonal.
    ones: Tensor,
    /// Below the diagonal, the blocks whose inverse is computed at each step of [`inverse`](Self::inverse).
    steps: Vec<Tensor>,
}

impl Triangle {
    fn new(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        let table = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> = (0..len * len).map(|at| value(at / len, at % len)).collect();
            Tensor::from_vec(values, (len, len), device)?.to_dtype(dtype)
        };
        let mut steps = Vec::new();
        let mut size = 1;
        while size < len {
            let below = |i: usize, j: usize| (i / size) % 2 == 1 && j / size + 1 == i / size;
            steps.push(table(&|i, j| f32::from(u8::from(below(i, j))))?);
            size *= 2;
        }
        Ok(Self {
            hidden: table(&|i, j| if j <= i { 0. } else { f32::NEG_INFINITY })?,
            ones: table(&|i, j| f32::from(u8::from(i == j)))?,
            steps,
        })
    }

    /// The inverse of the matrix that has `below`, `(.., len, len)`, below its diagonal and 1 on it. Inverses of blocks on the diagonal become
    /// those of blocks twice as large, which loses no digits, as powers of the matrix would.
    fn inverse(&self, below: &Tensor) -> Result<Tensor> {
        let mut inverse: Option<Tensor> = None;
        for step in &self.steps {
            let between = below.broadcast_mul(step)?;
            inverse = Some(match inverse {
                None => self.ones.broadcast_sub(&between)?,
                Some(inverse) => (&inverse - inverse.matmul(&between)?.matmul(&inverse)?)?,
            });
        }
        match inverse {
            Some(inverse) => Ok(inverse),
            None => self.ones.broadcast_as(below.shape())?.contiguous(),
        }
    }
}
