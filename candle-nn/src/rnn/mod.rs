//! Recurrent layers, with the weights' names and the order of gates that PyTorch has.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{lstm, LSTMConfig, VarBuilder, RNN};
//! # fn main() -> candle_core::Result<()> {
//! let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
//! let layer = lstm(3, 5, LSTMConfig::default(), vb)?;
//! let states = layer.seq(&Tensor::zeros((2, 7, 3), DType::F32, &Device::Cpu)?)?;
//! assert_eq!(layer.states_to_tensor(&states)?.dims(), &[2, 7, 5]);
//! # Ok(())
//! # }
//! ```

mod gru;
mod lstm;

pub use gru::{gru, GRUConfig, GRUState, GRU};
pub use lstm::{lstm, Direction, LSTMConfig, LSTMState, LSTM};

use crate::{Init, VarBuilder};
use candle_core::{DType, Device, IndexOp, Result, Tensor};

/// A layer that reads a sequence step by step and keeps a state.
// Upstream's name.
#[allow(clippy::upper_case_acronyms)]
pub trait RNN {
    /// The state between steps.
    type State: Clone;

    /// The state before a sequence: zeros.
    ///
    /// # Errors
    /// The device is out of memory.
    fn zero_state(&self, batch_dim: usize) -> Result<Self::State>;

    /// The state after one step, for `input` of shape (batch, features).
    ///
    /// # Errors
    /// `input` does not fit the layer or `state`.
    fn step(&self, input: &Tensor, state: &Self::State) -> Result<Self::State>;

    /// The states after each step of `input`, of shape (batch, seq, features), from [`RNN::zero_state`] on.
    ///
    /// # Errors
    /// Those of [`RNN::step`].
    fn seq(&self, input: &Tensor) -> Result<Vec<Self::State>> {
        let (batch_dim, _seq_len, _features) = input.dims3()?;
        self.seq_init(input, &self.zero_state(batch_dim)?)
    }

    /// The states after each step of `input`, of shape (batch, seq, features), from `init_state` on.
    ///
    /// # Errors
    /// Those of [`RNN::step`].
    fn seq_init(&self, input: &Tensor, init_state: &Self::State) -> Result<Vec<Self::State>> {
        let (_batch_dim, seq_len, _features) = input.dims3()?;
        let mut states: Vec<Self::State> = Vec::with_capacity(seq_len);
        for step in 0..seq_len {
            let input = input.i((.., step, ..))?.contiguous()?;
            let state = self.step(&input, states.last().unwrap_or(init_state))?;
            states.push(state);
        }
        Ok(states)
    }

    /// The layer's output for these states: (batch, seq, hidden) of an [`LSTM`], (batch, seq * hidden) of a [`GRU`], as
    /// in Candle.
    ///
    /// # Errors
    /// There are none, or they are of different shapes.
    fn states_to_tensor(&self, states: &[Self::State]) -> Result<Tensor>;
}

/// The weights of a layer with `gates` gates: each maps the input and the last state to one number per hidden unit.
#[derive(Clone, Debug)]
struct Gates {
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Option<Tensor>,
    b_hh: Option<Tensor>,
    hidden_dim: usize,
    device: Device,
    dtype: DType,
}

/// Initialization of the weights of [`Gates`].
struct Inits {
    w_ih: Init,
    w_hh: Init,
    b_ih: Option<Init>,
    b_hh: Option<Init>,
}

impl Gates {
    /// From the tensors `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and `bias_hh_l0`, `l0` being `suffix`.
    fn new(
        gates: usize,
        (in_dim, hidden_dim): (usize, usize),
        suffix: &str,
        inits: Inits,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let rows = gates * hidden_dim;
        let weight = |name, columns, init| {
            vb.get_with_hints((rows, columns), &format!("weight_{name}_{suffix}"), init)
        };
        let bias = |name, init: Option<Init>| {
            let get = |init| vb.get_with_hints(rows, &format!("bias_{name}_{suffix}"), init);
            init.map(get).transpose()
        };
        Ok(Self {
            w_ih: weight("ih", in_dim, inits.w_ih)?,
            w_hh: weight("hh", hidden_dim, inits.w_hh)?,
            b_ih: bias("ih", inits.b_ih)?,
            b_hh: bias("hh", inits.b_hh)?,
            hidden_dim,
            device: vb.device().clone(),
            dtype: vb.dtype(),
        })
    }

    fn zeros(&self, batch_dim: usize) -> Result<Tensor> {
        Tensor::zeros((batch_dim, self.hidden_dim), self.dtype, &self.device)
    }

    /// The gates' terms from the input and from the last state: (batch, gates * hidden) each.
    fn of(&self, input: &Tensor, h: &Tensor) -> Result<(Tensor, Tensor)> {
        let product = |xs: &Tensor, weight: &Tensor, bias: &Option<Tensor>| {
            let ys = xs.matmul(&weight.t()?)?;
            match bias {
                None => Ok(ys),
                Some(bias) => ys.broadcast_add(bias),
            }
        };
        Ok((
            product(input, &self.w_ih, &self.b_ih)?,
            product(h, &self.w_hh, &self.b_hh)?,
        ))
    }
}
