//! Long short-term memory.

use super::{Gates, Inits, RNN};
use crate::{init, ops, Init, VarBuilder};
use candle_core::{Result, Tensor};

/// The state of an [`LSTM`].
#[derive(Clone, Debug)]
pub struct LSTMState {
    /// The hidden state (the layer's output), of shape (batch, hidden).
    pub h: Tensor,
    /// The cells, of shape (batch, hidden).
    pub c: Tensor,
}

impl LSTMState {
    /// A state from its parts, of shape (batch, hidden) each.
    pub fn new(h: Tensor, c: Tensor) -> Self {
        Self { h, c }
    }

    /// The hidden state (the layer's output), of shape (batch, hidden).
    pub fn h(&self) -> &Tensor {
        &self.h
    }

    /// The cells, of shape (batch, hidden).
    pub fn c(&self) -> &Tensor {
        &self.c
    }
}

/// The direction of a layer of a bidirectional network. It only selects the weights' names: the caller passes the
/// reversed sequence to the backward layer.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// From the first step to the last.
    Forward,
    /// From the last step to the first; names end in `_reverse`.
    Backward,
}

/// The parameters of an [`LSTM`].
// Upstream's name.
#[allow(clippy::upper_case_acronyms)]
#[derive(Clone, Copy, Debug)]
pub struct LSTMConfig {
    /// Initialization of the input's weights; Kaiming uniform by default.
    pub w_ih_init: Init,
    /// Initialization of the state's weights; Kaiming uniform by default.
    pub w_hh_init: Init,
    /// Initialization of the input's bias, or `None` for no bias; zeros by default.
    pub b_ih_init: Option<Init>,
    /// Initialization of the state's bias, or `None` for no bias; zeros by default.
    pub b_hh_init: Option<Init>,
    /// The number in the weights' names; 0 by default.
    pub layer_idx: usize,
    /// The direction in the weights' names; forward by default.
    pub direction: Direction,
}

impl Default for LSTMConfig {
    fn default() -> Self {
        Self {
            w_ih_init: init::DEFAULT_KAIMING_UNIFORM,
            w_hh_init: init::DEFAULT_KAIMING_UNIFORM,
            b_ih_init: Some(init::ZERO),
            b_hh_init: Some(init::ZERO),
            layer_idx: 0,
            direction: Direction::Forward,
        }
    }
}

impl LSTMConfig {
    /// The default without biases.
    pub fn default_no_bias() -> Self {
        Self {
            b_ih_init: None,
            b_hh_init: None,
            ..Self::default()
        }
    }
}

/// Long short-term memory, see <https://doi.org/10.1162/neco.1997.9.8.1735>.
///
/// With σ the sigmoid and `i, f, g, o` the four parts of `W_ih x + b_ih + W_hh h + b_hh`:
/// `c' = σ(f) * c + σ(i) * tanh(g)`, `h' = σ(o) * tanh(c')`.
// Upstream's name.
#[allow(clippy::upper_case_acronyms)]
#[derive(Clone, Debug)]
pub struct LSTM {
    gates: Gates,
    config: LSTMConfig,
}

impl LSTM {
    /// A layer from the tensors of `vb`: `weight_ih_l0` (4 * hidden_dim, in_dim), `weight_hh_l0` (4 * hidden_dim, hidden_dim),
    /// `bias_ih_l0` and `bias_hh_l0` (4 * hidden_dim), with the layer's number for 0 and `_reverse` at the end for a backward one.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: LSTMConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let direction = match config.direction {
            Direction::Forward => "",
            Direction::Backward => "_reverse",
        };
        let suffix = format!("l{}{direction}", config.layer_idx);
        let inits = Inits {
            w_ih: config.w_ih_init,
            w_hh: config.w_hh_init,
            b_ih: config.b_ih_init,
            b_hh: config.b_hh_init,
        };
        let gates = Gates::new(4, (in_dim, hidden_dim), &suffix, inits, &vb)?;
        Ok(Self { gates, config })
    }

    /// The parameters.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }
}

/// [`LSTM::new`].
///
/// # Errors
/// Those of [`LSTM::new`].
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.gates.zeros(batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let (of_input, of_state) = self.gates.of(input, &state.h)?;
        let gates = (of_input + of_state)?.chunk(4, 1)?;
        let kept = (ops::sigmoid(&gates[1])? * &state.c)?;
        let c = (kept + (ops::sigmoid(&gates[0])? * gates[2].tanh()?)?)?;
        let h = (ops::sigmoid(&gates[3])? * c.tanh()?)?;
        Ok(LSTMState { h, c })
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let hs: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&hs, 1)
    }
}
