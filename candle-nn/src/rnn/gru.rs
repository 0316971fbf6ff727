//! Gated recurrent units.

use super::{Gates, Inits, RNN};
use crate::{init, ops, Init, VarBuilder};
use candle_core::{Result, Tensor};

/// The state of a [`GRU`].
#[derive(Clone, Debug)]
pub struct GRUState {
    /// The hidden state (the layer's output), of shape (batch, hidden).
    pub h: Tensor,
}

impl GRUState {
    /// The hidden state (the layer's output), of shape (batch, hidden).
    pub fn h(&self) -> &Tensor {
        &self.h
    }
}

/// The parameters of a [`GRU`].
// Upstream's name.
#[allow(clippy::upper_case_acronyms)]
#[derive(Clone, Copy, Debug)]
pub struct GRUConfig {
    /// Initialization of the input's weights; Kaiming uniform by default.
    pub w_ih_init: Init,
    /// Initialization of the state's weights; Kaiming uniform by default.
    pub w_hh_init: Init,
    /// Initialization of the input's bias, or `None` for no bias; zeros by default.
    pub b_ih_init: Option<Init>,
    /// Initialization of the state's bias, or `None` for no bias; zeros by default.
    pub b_hh_init: Option<Init>,
}

impl Default for GRUConfig {
    fn default() -> Self {
        Self {
            w_ih_init: init::DEFAULT_KAIMING_UNIFORM,
            w_hh_init: init::DEFAULT_KAIMING_UNIFORM,
            b_ih_init: Some(init::ZERO),
            b_hh_init: Some(init::ZERO),
        }
    }
}

impl GRUConfig {
    /// The default without biases.
    pub fn default_no_bias() -> Self {
        Self {
            b_ih_init: None,
            b_hh_init: None,
            ..Self::default()
        }
    }
}

/// Gated recurrent units, see <https://arxiv.org/abs/1412.3555>.
///
/// With σ the sigmoid, `r, z, n` the three parts of `W_ih x + b_ih` and `r', z', n'` those of `W_hh h + b_hh`:
/// `u = σ(z + z')`, `h' = u * h + (1 - u) * tanh(n + σ(r + r') * n')`.
// Upstream's name.
#[allow(clippy::upper_case_acronyms)]
#[derive(Clone, Debug)]
pub struct GRU {
    gates: Gates,
    config: GRUConfig,
}

impl GRU {
    /// A layer from the tensors of `vb`: `weight_ih_l0` (3 * hidden_dim, in_dim), `weight_hh_l0` (3 * hidden_dim, hidden_dim),
    /// `bias_ih_l0` and `bias_hh_l0` (3 * hidden_dim).
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(
        in_dim: usize,
        hidden_dim: usize,
        config: GRUConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let inits = Inits {
            w_ih: config.w_ih_init,
            w_hh: config.w_hh_init,
            b_ih: config.b_ih_init,
            b_hh: config.b_hh_init,
        };
        let gates = Gates::new(3, (in_dim, hidden_dim), "l0", inits, &vb)?;
        Ok(Self { gates, config })
    }

    /// The parameters.
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }
}

/// [`GRU::new`].
///
/// # Errors
/// Those of [`GRU::new`].
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}

impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        let h = self.gates.zeros(batch_dim)?;
        Ok(GRUState { h })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let (of_input, of_state) = self.gates.of(input, &state.h)?;
        let (of_input, of_state) = (of_input.chunk(3, 1)?, of_state.chunk(3, 1)?);
        let reset = ops::sigmoid(&(&of_input[0] + &of_state[0])?)?;
        let update = ops::sigmoid(&(&of_input[1] + &of_state[1])?)?;
        let new = (&of_input[2] + (reset * &of_state[2])?)?.tanh()?;
        // u h + (1 - u) n
        let h = (&new + (update * (&state.h - &new)?)?)?;
        Ok(GRUState { h })
    }

    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let hs: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::cat(&hs, 1)
    }
}
