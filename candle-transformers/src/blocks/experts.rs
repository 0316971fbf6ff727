//! Sparse mixtures of experts in place of one MLP, as in Mixtral: [arXiv 2401.04088](https://arxiv.org/abs/2401.04088).

use candle_core::quantized::QMatMul;
use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::ops::{self, act_mul, GatedActivation};

use super::feed_forward::linear;
use super::weights::Weights;
use super::{GatedMlp, MergedLinear, Names, Projection};

/// A mixture before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// How many there are.
    pub count: usize,
    /// Inner size of one.
    pub inner: usize,
    /// Their activation.
    pub activation: GatedActivation,
    /// The choice.
    pub routing: Routing,
    /// The expert that every token takes.
    pub shared: Option<SharedSpec>,
}

/// An expert that every token takes, beside those that are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSpec {
    /// Inner size.
    pub inner: usize,
    /// Whether its output is multiplied with the sigmoid of a score of its own.
    pub gated: bool,
}

/// How experts are chosen for a token, and what their outputs are multiplied with.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts for each token.
    pub used: usize,
    /// From scores to probabilities.
    pub scoring: Scoring,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalised: bool,
    /// What the weights are multiplied with last.
    pub scale: f64,
    /// Groups of experts, of which the best are chosen first.
    pub groups: Option<Groups>,
    /// Whether files have a bias that is added to the probabilities for the choice alone.
    pub choice_bias: bool,
}

/// From scores to probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// Over the chosen: the scores decide.
    SoftmaxOfChosen,
}

/// Groups of experts: only experts of the best groups can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    /// How many there are; a divisor of the experts.
    pub count: usize,
    /// How many can be chosen from.
    pub used: usize,
    /// A group is as good as the sum of its best so many experts.
    pub best: usize,
}

impl Routing {
    /// Softmax over all, the `used` best, divided by their sum if `normalised` says so.
    pub fn softmax(used: usize, normalised: bool) -> Self {
        Self {
            used,
            scoring: Scoring::Softmax,
            normalised,
            scale: 1.,
            groups: None,
            choice_bias: false,
        }
    }

    /// The experts of each row of `scores`, `(tokens, count)`, and their weights: `(tokens, used)` both. `bias`, `(count)`, is that of the
    /// choice. Nothing is read back from the device.
    ///
    /// # Errors
    /// If shapes or dtypes do not match.
    pub fn choose(&self, scores: &Tensor, bias: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let probabilities = match self.scoring {
            Scoring::Softmax => ops::softmax_last_dim(scores)?,
            Scoring::Sigmoid => ops::sigmoid(scores)?,
            Scoring::SoftmaxOfChosen => scores.clone(),
        };
        let mut order = match bias {
            Some(bias) => probabilities.broadcast_add(bias)?,
            None => probabilities.clone(),
        };
        if let Some(groups) = &self.groups {
            order = groups.hide(&order)?;
        }
        let (sorted, experts) = order.sort_last_dim(false)?;
        let experts = experts.narrow(D::Minus1, 0, self.used)?.contiguous()?;
        let mut weights = match bias.is_some() || self.groups.is_some() {
            true => probabilities.gather(&experts, D::Minus1)?,
            false => sorted.narrow(D::Minus1, 0, self.used)?,
        };
        if self.scoring == Scoring::SoftmaxOfChosen {
            weights = ops::softmax_last_dim(&weights.contiguous()?)?;
        }
        if self.normalised {
            let mut sum = weights.sum_keepdim(D::Minus1)?;
            if self.scoring == Scoring::Sigmoid {
                // All of them can be 0.
                sum = (sum + 1e-20)?;
            }
            weights = weights.broadcast_div(&sum)?;
        }
        if self.scale != 1. {
            weights = (weights * self.scale)?;
        }
        Ok((experts, weights))
    }
}

impl Groups {
    /// The scores, with those of experts outside of the best groups set to 0, or below where scores can be.
    fn hide(&self, scores: &Tensor) -> Result<Tensor> {
        let (tokens, experts) = scores.dims2()?;
        if self.count == 0 || experts % self.count != 0 || !(1..=self.count).contains(&self.used) {
            bail!(
                "mixture of experts: {} of {} groups of {experts} experts cannot be chosen",
                self.used,
                self.count
            )
        }
        let size = experts / self.count;
        let grouped = scores.reshape((tokens, self.count, size))?;
        let (best, _) = grouped.contiguous()?.sort_last_dim(false)?;
        let of_group = best
            .narrow(D::Minus1, 0, self.best.min(size))?
            .sum(D::Minus1)?;
        // A group is chosen if fewer than `used` groups are better.
        let (ranked, _) = of_group.contiguous()?.sort_last_dim(false)?;
        let least = ranked.narrow(D::Minus1, self.used - 1, 1)?;
        let chosen = of_group.broadcast_ge(&least)?.unsqueeze(D::Minus1)?;
        let chosen = chosen.broadcast_as(grouped.shape())?.contiguous()?;
        let hidden = (grouped.zeros_like()? - 1e4)?;
        chosen
            .where_cond(&grouped.contiguous()?, &hidden)?
            .reshape((tokens, experts))
    }
}

/// Gated MLPs of which a router picks some for each token; their outputs are summed with the router's weights.
#[derive(Debug, Clone)]
pub struct SparseMoe {
    router: Projection,
    choice_bias: Option<Tensor>,
    routing: Routing,
    gate_up: GateUp,
    down: QMatMul,
    activation: GatedActivation,
    shared: Option<(GatedMlp, Option<Projection>)>,
}

/// The first layers of experts.
#[derive(Debug, Clone)]
enum GateUp {
    Apart(QMatMul, QMatMul),
    Joined(QMatMul),
}

impl SparseMoe {
    /// A block from its weights: `router` has an output for each expert, `gate` and `up` are `(experts, inner, hidden_size)`, `down` is
    /// `(experts, hidden_size, inner)`. The weights are checked when the block is applied.
    ///
    /// # Errors
    /// If no expert is used.
    pub fn new(
        router: Projection,
        [gate, up, down]: [QMatMul; 3],
        activation: GatedActivation,
        routing: Routing,
    ) -> Result<Self> {
        if routing.used == 0 {
            bail!("mixture of experts: 0 experts for each token, at least one is needed")
        }
        Ok(Self {
            router,
            choice_bias: None,
            routing,
            gate_up: GateUp::Apart(gate, up),
            down,
            activation,
            shared: None,
        })
    }

    /// Loads the block of a layer, whose names stand behind `prefix`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub(super) async fn load(
        spec: &ExpertsSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let count = spec.count;
        if !(1..=count).contains(&spec.routing.used) {
            bail!(
                "mixture of experts: {} of {count} experts cannot be chosen for each token",
                spec.routing.used
            )
        }
        let router = linear(prefix, names.router, hidden, count, false);
        let router = weights.linear(&router).await?;
        let choice_bias = match spec.routing.choice_bias {
            true => {
                let name = format!("{prefix}.{}", names.router_bias);
                let zeros = candle_nn::Init::Const(0.);
                Some(weights.dense(&name, &[count], zeros).await?)
            }
            false => None,
        };
        let whole = |name: &str| format!("{prefix}.{name}");
        let inner = spec.inner;
        let [gate, up, down] = [0, 1, 2].map(|i| (whole(names.experts[i]), whole(names.expert[i])));
        let [both, joined_down] = names.experts_joined.map(whole);
        let (gate_up, down) = match !names.experts_joined[0].is_empty() && weights.has(&both) {
            true => (
                GateUp::Joined(
                    weights
                        .experts(&both, "", [count, 2 * inner, hidden])
                        .await?,
                ),
                weights
                    .experts(&joined_down, "", [count, hidden, inner])
                    .await?,
            ),
            false => (
                GateUp::Apart(
                    weights
                        .experts(&gate.0, &gate.1, [count, inner, hidden])
                        .await?,
                    weights
                        .experts(&up.0, &up.1, [count, inner, hidden])
                        .await?,
                ),
                weights
                    .experts(&down.0, &down.1, [count, hidden, inner])
                    .await?,
            ),
        };
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let inner = shared.inner;
                let [gate, up, down] = names.shared;
                let gate_up: MergedLinear<2> = weights
                    .merged([
                        linear(prefix, gate, hidden, inner, false),
                        linear(prefix, up, hidden, inner, false),
                    ])
                    .await?;
                let down = linear(prefix, down, inner, hidden, false);
                let down = weights.linear(&down).await?;
                let score = match shared.gated {
                    true => {
                        let gate = linear(prefix, names.shared_gate, hidden, 1, false);
                        Some(weights.linear(&gate).await?)
                    }
                    false => None,
                };
                Some((GatedMlp::new(gate_up, down, spec.activation), score))
            }
        };
        Ok(Self {
            router,
            choice_bias,
            routing: spec.routing.clone(),
            gate_up,
            down,
            activation: spec.activation,
            shared,
        })
    }

    fn chosen(&self, tokens: &Tensor) -> Result<Tensor> {
        let scores = self.router.forward(tokens)?.to_dtype(DType::F32)?;
        let bias = match &self.choice_bias {
            Some(bias) => Some(bias.to_dtype(DType::F32)?),
            None => None,
        };
        let (experts, weights) = self.routing.choose(&scores, bias.as_ref())?;
        let tokens = tokens.unsqueeze(1)?;
        let inner = match &self.gate_up {
            GateUp::Apart(gate, up) => act_mul(
                &gate.indexed_moe_forward(&tokens, &experts)?,
                &up.indexed_moe_forward(&tokens, &experts)?,
                self.activation,
            )?,
            GateUp::Joined(both) => ops::gated(
                &both.indexed_moe_forward(&tokens, &experts)?,
                self.activation,
            )?,
        };
        let ys = self.down.indexed_moe_forward(&inner, &experts)?;
        let weights = weights.to_dtype(ys.dtype())?;
        ys.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?.sum(1)
    }
}

/// From `(b, t, hidden_size)` to the same shape.
impl Module for SparseMoe {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, t, hidden) = xs.dims3()?;
        let tokens = xs.reshape((b * t, hidden))?;
        let mut ys = self.chosen(&tokens)?;
        if let Some((mlp, score)) = &self.shared {
            let mut shared = mlp.forward(&tokens)?;
            if let Some(score) = score {
                shared = shared.broadcast_mul(&ops::sigmoid(&score.forward(&tokens)?)?)?;
            }
            ys = (ys + shared)?;
        }
        ys.reshape((b, t, hidden))
    }
}
