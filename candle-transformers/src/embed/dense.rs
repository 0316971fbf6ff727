//! The layers that some models have behind the pooling: `Dense` in the files of sentence-transformers.

use candle_core::{bail, Context, DType, Module, Result, Tensor};
use candle_nn::{linear_b, Linear, VarBuilder};
use serde::Deserialize;

use super::recipe::read;

/// A layer before it has weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseSpec {
    /// The folder of its `config.json` and its weights, beside the model.
    pub folder: String,
    /// Elements that it takes.
    pub in_features: usize,
    /// Elements that it gives.
    pub out_features: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether tanh follows.
    pub tanh: bool,
}

#[derive(Deserialize)]
struct File {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
}

fn yes() -> bool {
    true
}

impl DenseSpec {
    /// Reads the `config.json` of a folder by `file`, as in [`Recipe::read`](super::Recipe::read).
    pub(super) fn read(
        file: &mut dyn FnMut(&str) -> Result<Option<String>>,
        folder: &str,
    ) -> Result<Self> {
        let path = format!("{folder}/config.json");
        let Some(given) = read::<File>(file, &path)? else {
            bail!("modules.json: module Dense lacks {path}")
        };
        let activation = given.activation_function.as_deref().unwrap_or("Tanh");
        let tanh = match activation.rsplit('.').next().unwrap_or_default() {
            "Identity" => false,
            "Tanh" => true,
            _ => bail!("{path}: activation_function {activation:?} is not supported; expected Identity or Tanh"),
        };
        Ok(Self {
            folder: folder.to_string(),
            in_features: given.in_features,
            out_features: given.out_features,
            bias: given.bias,
            tanh,
        })
    }

    /// The layer, with the weights `linear` of its folder. It is computed in f32, as pooling is.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(&self, vb: VarBuilder) -> Result<Dense> {
        let (takes, gives) = (self.in_features, self.out_features);
        let vb = vb.pp("linear").to_dtype(DType::F32);
        let layer = linear_b(takes, gives, self.bias, vb);
        Ok(Dense {
            layer: layer.context(self.folder.clone())?,
            tanh: self.tanh,
        })
    }
}

/// A layer of a text's vector.
#[derive(Debug, Clone)]
pub struct Dense {
    layer: Linear,
    tanh: bool,
}

impl Dense {
    /// Elements that it takes, and that it gives.
    pub(super) fn sizes(&self) -> Result<(usize, usize)> {
        let (gives, takes) = self.layer.weight().dims2()?;
        Ok((takes, gives))
    }
}

/// (texts, in_features) to (texts, out_features).
impl Module for Dense {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.layer.forward(xs)?;
        match self.tanh {
            true => ys.tanh(),
            false => Ok(ys),
        }
    }
}
