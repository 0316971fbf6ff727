//! Mixtures of experts as layers by themselves. Models here have [`crate::blocks::SparseMoe`], which these are made of.

use std::sync::Arc;

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Activation, Linear, VarBuilder};

use crate::blocks::{at_once, LinearSpec, Routing, SparseMoe, Weights};
use crate::quantized_var_builder;

/// The sizes of a mixture of experts.
pub struct MoeCfg {
    /// Size of the stream.
    pub hidden_size: usize,
    /// Experts.
    pub num_experts: usize,
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// Inner size of an expert.
    pub moe_intermediate_size: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// Activation of the gates.
    pub act: Activation,
    /// For models: every layer whose number is a multiple of this has experts. The layers here do not read it.
    pub decoder_sparse_step: Option<usize>,
}

/// A mixture over dense weights.
#[derive(Debug, Clone)]
pub struct FusedMoe {
    moe: SparseMoe,
}

impl FusedMoe {
    /// Loads `gate` and `experts.N.{gate_proj, up_proj, down_proj}`. `dtype` is upstream's, of no effect here: weights are of the dtype of
    /// `vb`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape, or no gate has the activation.
    pub fn new(cfg: &MoeCfg, mut vb: VarBuilder, dtype: DType) -> Result<Self> {
        let _ = dtype;
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        let (hidden, inner, count) = (cfg.hidden_size, cfg.moe_intermediate_size, cfg.num_experts);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        let router = LinearSpec {
            name: "gate".into(),
            in_dim: hidden,
            out_dim: count,
            bias: false,
        };
        let router = at_once(weights.linear(&router))?;
        let mut experts = |name: &str, out_dim, in_dim| {
            let each = format!("experts.{{}}.{name}");
            at_once(weights.experts("", &each, [count, out_dim, in_dim]))
        };
        let experts = [
            experts("gate_proj", inner, hidden)?,
            experts("up_proj", inner, hidden)?,
            experts("down_proj", hidden, inner)?,
        ];
        let routing = Routing::softmax(cfg.num_experts_per_tok, cfg.norm_topk_prob);
        SparseMoe::new(router, experts, cfg.act.try_into()?, routing).map(|moe| Self { moe })
    }

    /// From `(b, t, hidden_size)` to the same shape. `is_prefill` is upstream's, of no effect here.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, is_prefill: bool) -> Result<Tensor> {
        let _ = is_prefill;
        self.moe.forward(xs)
    }
}

/// A mixture over quantised weights, from a GGUF file.
pub struct FusedMoeGGUF {
    /// From a token to a score for each expert, in f32.
    pub gate: Linear,
    /// `(experts, inner, hidden_size)`.
    pub gate_experts: Arc<QTensor>,
    /// `(experts, inner, hidden_size)`.
    pub up_experts: Arc<QTensor>,
    /// `(experts, hidden_size, inner)`.
    pub down_experts: Arc<QTensor>,
    /// Activation of the gates.
    pub act: Activation,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// The dtype that upstream computes prompts in, of no effect here.
    pub dtype: DType,
}

impl FusedMoeGGUF {
    /// Loads `ffn_gate_inp`, `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(cfg: &MoeCfg, vb: quantized_var_builder::VarBuilder, dtype: DType) -> Result<Self> {
        let (hidden, inner, count) = (cfg.hidden_size, cfg.moe_intermediate_size, cfg.num_experts);
        let experts = |name: &str, shape: (usize, usize, usize)| vb.pp(name).get(shape, "weight");
        let gate = vb.pp("ffn_gate_inp").get((count, hidden), "weight")?;
        Ok(Self {
            gate: Linear::new(gate.dequantize(vb.device())?.to_dtype(DType::F32)?, None),
            gate_experts: experts("ffn_gate_exps", (count, inner, hidden))?,
            up_experts: experts("ffn_up_exps", (count, inner, hidden))?,
            down_experts: experts("ffn_down_exps", (count, hidden, inner))?,
            act: cfg.act,
            norm_topk_prob: cfg.norm_topk_prob,
            num_experts_per_tok: cfg.num_experts_per_tok,
            dtype,
        })
    }

    /// From `(b, t, hidden_size)` to the same shape and dtype, computed in f32. `is_prefill` is upstream's and has no effect here.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, or no gate has the activation.
    pub fn forward(&self, xs: &Tensor, is_prefill: bool) -> Result<Tensor> {
        let _ = is_prefill;
        let experts = [&self.gate_experts, &self.up_experts, &self.down_experts];
        let moe = SparseMoe::new(
            self.gate.clone().into(),
            experts.map(|weight| QMatMul::QTensor(weight.clone())),
            self.act.try_into()?,
            Routing::softmax(self.num_experts_per_tok, self.norm_topk_prob),
        )?;
        moe.forward(&xs.to_dtype(DType::F32)?)?.to_dtype(xs.dtype())
    }
}
