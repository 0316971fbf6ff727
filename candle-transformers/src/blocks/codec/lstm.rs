//! LSTM layers over (batch, channels, time).

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{lstm, LSTMConfig, VarBuilder, LSTM, RNN};

/// LSTMs in order, whose result is added to what came in.
#[derive(Debug, Clone)]
pub struct ResidualLstm(Vec<LSTM>);

impl ResidualLstm {
    /// `layers` layers with `dim` features each, from `lstm.weight_ih_l0` and so on.
    ///
    /// # Errors
    /// There are no layers, or a tensor is missing or has another shape.
    pub fn load(dim: usize, layers: usize, vb: VarBuilder) -> Result<Self> {
        if layers == 0 {
            bail!("lstm: at least 1 layer is required")
        }
        let layer = |layer_idx| {
            let config = LSTMConfig {
                layer_idx,
                ..Default::default()
            };
            lstm(dim, dim, config, vb.pp("lstm"))
        };
        (0..layers).map(layer).collect::<Result<_>>().map(Self)
    }
}

impl Module for ResidualLstm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.transpose(1, 2)?;
        for layer in &self.0 {
            ys = layer.states_to_tensor(&layer.seq(&ys)?)?;
        }
        ys.transpose(1, 2)? + xs
    }
}
