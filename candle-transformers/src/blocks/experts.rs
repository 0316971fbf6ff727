//! Sparse mixtures of experts instead of one MLP, as in Mixtral: [arXiv 2401.04088](https://arxiv.org/abs/2401.04088).

use candle_core::quantized::QMatMul;
use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::ops::{self, act_mul, GatedActivation};
use candle_nn::Init;

use super::feed_forward::linear;
use super::weights::{Order, Weights};
use super::{GatedMlp, MlpSpec, Names, Projection};

mod alternate;
mod sparse_mixer;

/// A mixture before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Inner size of one.
    pub inner: usize,
    /// Their activation.
    pub activation: GatedActivation,
    /// The choice.
    pub routing: Routing,
    /// The shared expert, which every token takes.
    pub shared: Option<SharedSpec>,
    /// Whether the router and the experts have biases.
    pub bias: bool,
    /// The layout of gate and up in files, if all experts are one tensor.
    pub joined: JoinedExperts,
}

impl ExpertsSpec {
    /// Without a shared expert and without biases.
    pub fn new(count: usize, inner: usize, activation: GatedActivation, routing: Routing) -> Self {
        Self {
            count,
            inner,
            activation,
            routing,
            shared: None,
            bias: false,
            joined: JoinedExperts::Halves,
        }
    }

    /// Whether a GPU runs `tokens` tokens without the host: few enough for a product with each pair's matrix, and a choice without numbers from the host.
    #[cfg(feature = "cuda")]
    pub(super) fn stay_on_device(&self, tokens: usize) -> bool {
        let is_few = tokens * self.routing.used <= FEW_PAIRS;
        is_few && !matches!(self.routing.scoring, Scoring::SparseMixer { .. })
    }

    /// With an expert that every token takes.
    pub fn shared(self, shared: SharedSpec) -> Self {
        Self {
            shared: Some(shared),
            ..self
        }
    }
}

/// The layout of gate and up of all experts in one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinedExperts {
    /// `(count, 2 * inner, hidden_size)`: the rows of the gate, then those of up.
    Halves,
    /// gpt-oss: `(count, hidden_size, 2 * inner)`, a column of the gate and one of up in alternation, and down as `(count, inner,
    /// hidden_size)`; or both as MXFP4 in `*_blocks` and `*_scales`, whose rows are outputs.
    Alternating,
}

/// An expert that every token takes, in addition to the chosen ones.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSpec {
    /// Inner size.
    pub inner: usize,
    /// Whether its output is multiplied with the sigmoid of a separate score.
    pub gated: bool,
    /// The layout of its gate and up in files: separate (`None`), or as one tensor, that of [`Names::gate_up`].
    pub joined: Option<Order>,
}

impl SharedSpec {
    /// Gate and up apart, its output as it is.
    pub fn new(inner: usize) -> Self {
        Self {
            inner,
            gated: false,
            joined: None,
        }
    }

    /// The MLP that it is, and the names of that MLP's weights.
    pub(super) fn mlp(&self, activation: GatedActivation, names: &Names) -> (MlpSpec, Names) {
        let mlp = MlpSpec {
            joined: self.joined,
            ..MlpSpec::new(self.inner, activation)
        };
        let [gate, up, down] = names.shared;
        let names = Names {
            gate,
            up,
            down,
            ..*names
        };
        (mlp, names)
    }
}

/// The choice of a token's experts, and the weights of their outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts for each token.
    pub used: usize,
    /// The function from scores to probabilities.
    pub scoring: Scoring,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalised: bool,
    /// Factor of the weights, applied last.
    pub scale: f64,
    /// Groups of experts; the best groups are chosen first.
    pub groups: Option<Groups>,
    /// Whether files have a bias that is added to the probabilities for the choice alone.
    pub choice_bias: bool,
}

/// From scores to probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scoring {
    /// Over all experts.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
    /// Over the chosen: the scores decide.
    SoftmaxOfChosen,
    /// The softmax of one choice after another, over the remaining experts near the best of them: [arXiv
    /// 2409.12136](https://arxiv.org/abs/2409.12136).
    SparseMixer {
        /// Their maximum distance: twice this fraction of the score.
        jitter: f64,
    },
}

/// Groups of experts: only experts of the best groups can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    /// Number of groups; a divisor of the number of experts.
    pub count: usize,
    /// Number of groups to choose from.
    pub used: usize,
    /// A group is as good as the sum of this many of its best experts.
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
        if let Scoring::SparseMixer { jitter } = self.scoring {
            return sparse_mixer::choose(scores, self.used, jitter);
        }
        let probabilities = match self.scoring {
            Scoring::Softmax => ops::softmax_last_dim(scores)?,
            Scoring::Sigmoid => ops::sigmoid(scores)?,
            Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => scores.clone(),
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
        let mut weights = if bias.is_some() || self.groups.is_some() {
            probabilities.gather(&experts, D::Minus1)?
        } else {
            sorted.narrow(D::Minus1, 0, self.used)?
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
    fn check(&self, experts: usize) -> Result<()> {
        let divides = self.count > 0 && experts.is_multiple_of(self.count);
        if !divides || !(1..=self.count).contains(&self.used) {
            bail!(
                "mixture of experts: {} of {} groups of {experts} experts cannot be chosen",
                self.used,
                self.count
            )
        }
        Ok(())
    }

    /// The scores, with those of experts outside of the best groups set to 0, or below where scores can be.
    fn hide(&self, scores: &Tensor) -> Result<Tensor> {
        let (tokens, experts) = scores.dims2()?;
        self.check(experts)?;
        let size = experts / self.count;
        let grouped = scores.reshape((tokens, self.count, size))?;
        let (best, _) = grouped.contiguous()?.sort_last_dim(false)?;
        let of_group = best
            .narrow(D::Minus1, 0, self.best.min(size))?
            .sum(D::Minus1)?;
        // A group is chosen if fewer than `used` groups are better.
        // Ranks, not scores: equally good groups get distinct ranks.
        let order = of_group.contiguous()?.arg_sort_last_dim(false)?;
        let ranks = order.arg_sort_last_dim(true)?;
        let chosen = ranks.lt(self.used as u32)?.unsqueeze(D::Minus1)?;
        let chosen = chosen.broadcast_as(grouped.shape())?.contiguous()?;
        let hidden = (grouped.zeros_like()? - 1e4)?;
        chosen
            .where_cond(&grouped.contiguous()?, &hidden)?
            .reshape((tokens, experts))
    }
}

/// Gated MLPs; a router picks some for each token and weights the sum of their outputs.
#[derive(Debug, Clone)]
pub struct SparseMoe {
    router: Projection,
    choice_bias: Option<Tensor>,
    routing: Routing,
    gate_up: GateUp,
    down: QMatMul,
    /// The biases of gate (followed by up if both are joined), up and down: `(count, outputs)`.
    biases: Option<[Option<Tensor>; 3]>,
    activation: GatedActivation,
    shared: Option<(GatedMlp, Option<Projection>)>,
}

/// The first layers of experts.
#[derive(Debug, Clone)]
enum GateUp {
    Apart(QMatMul, QMatMul),
    Joined(QMatMul),
}

/// The weights of experts: gate and up, down, and the biases of both.
type Experts = (GateUp, QMatMul, Option<[Option<Tensor>; 3]>);

impl ExpertsSpec {
    /// Checks what the layers take for granted.
    pub(super) fn check(&self) -> Result<()> {
        let (count, used) = (self.count, self.routing.used);
        if !(1..=count).contains(&used) {
            bail!("mixture of experts: {used} of {count} experts cannot be chosen for each token")
        }
        let Some(groups) = &self.routing.groups else {
            return Ok(());
        };
        groups.check(count)?;
        if used > groups.used * (count / groups.count) {
            bail!(
                "mixture of experts: {used} experts cannot be chosen from {} groups of {}",
                groups.used,
                count / groups.count
            )
        }
        Ok(())
    }

    /// The experts in the form that the source has: as one tensor each for gate, up and down, as a tensor for each expert, or with gate
    /// and up joined.
    async fn experts(
        &self,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Experts> {
        let (count, inner) = (self.count, self.inner);
        let whole = |name: &str| match name {
            "" => String::new(),
            name => format!("{prefix}.{name}"),
        };
        let stacked = names.experts.map(whole);
        let each = names.expert.map(whole);
        let [both, joined_down] = names.experts_joined.map(whole);
        let first = format!("{}.weight", each[0].replace("{}", "0"));
        let apart = !stacked[0].is_empty() && weights.has(&stacked[0])
            || !each[0].is_empty() && (both.is_empty() || weights.has(&first));
        let sizes = [
            [count, inner, hidden],
            [count, inner, hidden],
            [count, hidden, inner],
        ];
        if apart {
            let [gate, up, down] = sizes;
            let gate = weights.experts(&stacked[0], &each[0], gate).await?;
            let up = weights.experts(&stacked[1], &each[1], up).await?;
            let down = weights.experts(&stacked[2], &each[2], down).await?;
            let mut biases = [None, None, None];
            if self.bias {
                for (i, bias) in biases.iter_mut().enumerate() {
                    let name = whole(names.expert_biases[i]);
                    let shape = [count, sizes[i][1]];
                    *bias = Some(weights.dense(&name, &shape, Init::Const(0.)).await?);
                }
            }
            return Ok((GateUp::Apart(gate, up), down, self.bias.then_some(biases)));
        }
        let shape = [count, 2 * inner, hidden];
        let (gate_up, down) = match self.joined {
            JoinedExperts::Halves => (
                weights.experts(&both, "", shape).await?,
                weights.experts(&joined_down, "", sizes[2]).await?,
            ),
            JoinedExperts::Alternating => (
                alternate::experts(weights, &both, shape, true).await?,
                alternate::experts(weights, &joined_down, sizes[2], false).await?,
            ),
        };
        let biases = if self.bias {
            let [gate_up, down] = names.experts_joined_biases.map(whole);
            let zeros = Init::Const(0.);
            let mut gate_up = weights.dense(&gate_up, &[count, 2 * inner], zeros).await?;
            if self.joined == JoinedExperts::Alternating {
                gate_up = alternate::in_halves(&gate_up)?;
            }
            let down = weights.dense(&down, &[count, hidden], zeros).await?;
            Some([Some(gate_up), None, Some(down)])
        } else {
            None
        };
        Ok((GateUp::Joined(gate_up), down, biases))
    }
}

/// Pairs of a token and an expert up to which a GPU reads a matrix for each of them. Beyond that this takes more time than the host needs to
/// sort tokens by their experts.
const FEW_PAIRS: usize = 64;

/// `xs`, `(tokens, 1 or used, k)`, times the matrices of `experts`, `(tokens, used)`: `(tokens, used, n)`. Of few pairs no choice is read
/// back from the device.
fn expert_product(weight: &QMatMul, xs: &Tensor, experts: &Tensor) -> Result<Tensor> {
    let (tokens, used) = experts.dims2()?;
    if xs.device().is_cpu() || tokens * used > FEW_PAIRS {
        return weight.indexed_moe_forward(xs, experts);
    }
    if let Some(ys) = weight.expert_rows(xs, experts)? {
        return Ok(ys);
    }
    // A copy of its matrix for each.
    let matrices = weight.expert_matrices(&experts.flatten_all()?)?;
    let (pairs, n, k) = matrices.dims3()?;
    let rows = xs.broadcast_as((tokens, used, k))?.reshape((pairs, 1, k))?;
    let rows = rows.to_dtype(matrices.dtype())?;
    let ys = rows.matmul(&matrices.transpose(1, 2)?)?;
    ys.reshape((tokens, used, n))?.to_dtype(xs.dtype())
}

/// From a token to the score of the shared expert; files have a row, or a matrix of one row.
async fn shared_score(
    hidden: usize,
    weights: &mut Weights<'_>,
    names: &Names,
    prefix: &str,
) -> Result<Projection> {
    let score = linear(prefix, names.shared_gate, hidden, 1, false);
    let name = format!("{}.weight", score.name);
    match weights.shape(&name) {
        Some(shape) if shape.rank() == 1 => {
            let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
            let row = weights.dense(&name, &[hidden], init).await?;
            Ok(Projection::new(QMatMul::Tensor(row.unsqueeze(0)?), None))
        }
        _ => weights.linear(&score).await,
    }
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
            bail!("mixture of experts: 0 experts per token; at least 1 is required")
        }
        Ok(Self {
            router,
            choice_bias: None,
            routing,
            gate_up: GateUp::Apart(gate, up),
            down,
            biases: None,
            activation,
            shared: None,
        })
    }

    /// Loads the block of a layer from weights named `prefix` and a suffix.
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
        spec.check()?;
        let count = spec.count;
        let router = linear(prefix, names.router, hidden, count, spec.bias);
        let router = weights.linear(&router).await?;
        let choice_bias = if spec.routing.choice_bias {
            let name = format!("{prefix}.{}", names.router_bias);
            let zeros = candle_nn::Init::Const(0.);
            Some(weights.dense(&name, &[count], zeros).await?)
        } else {
            None
        };
        let (gate_up, down, biases) = spec.experts(hidden, weights, names, prefix).await?;
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let (mlp, names) = shared.mlp(spec.activation, names);
                let mlp = GatedMlp::load(&mlp, hidden, weights, &names, prefix).await?;
                let score = if shared.gated {
                    Some(shared_score(hidden, weights, &names, prefix).await?)
                } else {
                    None
                };
                Some((mlp, score))
            }
        };
        Ok(Self {
            router,
            choice_bias,
            routing: spec.routing.clone(),
            gate_up,
            down,
            biases,
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
        let [gate_bias, up_bias, down_bias] = match &self.biases {
            Some(biases) => biases.each_ref().map(Option::as_ref),
            None => [None; 3],
        };
        let product = |weight: &QMatMul, xs: &Tensor, bias: Option<&Tensor>| {
            let ys = expert_product(weight, xs, &experts)?;
            match bias {
                None => Ok(ys),
                Some(bias) => {
                    let bias = bias.index_select(&experts.flatten_all()?, 0)?;
                    &ys + bias.reshape(ys.shape())?
                }
            }
        };
        let inner = match &self.gate_up {
            GateUp::Apart(gate, up) => act_mul(
                &product(gate, &tokens, gate_bias)?,
                &product(up, &tokens, up_bias)?,
                self.activation,
            )?,
            GateUp::Joined(both) => {
                ops::gated(&product(both, &tokens, gate_bias)?, self.activation)?
            }
        };
        let ys = product(&self.down, &inner, down_bias)?;
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
