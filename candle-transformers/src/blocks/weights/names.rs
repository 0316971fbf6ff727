//! What files call the parts of a decoder.

/// The names of a decoder's weights, without `.weight` and `.bias`. A family has another constant that differs from one of these in
/// few fields:
///
/// ```
/// use candle_transformers::blocks::Names;
/// const PHI: Names = Names { o: "self_attn.dense", up: "mlp.fc1", down: "mlp.fc2", ..Names::HUGGING_FACE };
/// assert_eq!(PHI.layer(3), "model.layers.3");
/// ```
///
/// The name of a layer's part is the layer's, which is [`Names::layer`], followed by these. In those of experts that have a tensor each,
/// `{}` is the expert's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The token table.
    pub embedding: &'static str,
    /// The table of learned positions.
    pub positions: &'static str,
    /// A norm of the embeddings.
    pub embedding_norm: &'static str,
    /// Prefix of the layers' numbers.
    pub layers: &'static str,
    /// The number of the first layer.
    pub first_layer: usize,
    /// The norm after the last layer. `{}` is replaced by the number that a further layer would have.
    pub final_norm: &'static str,
    /// The output layer; `{}` as in the norm's.
    pub head: &'static str,
    /// Factors of the rotary frequencies, if a file has them.
    pub rope_factors: &'static str,
    /// Factors of the rotary frequencies of short and of long sequences, if a file has them; the whole names.
    pub rope_factors_long: [&'static str; 2],

    /// The norm before attention, or before everything in a parallel layer.
    pub attn_norm: &'static str,
    /// The norm of what attention gives.
    pub attn_post_norm: &'static str,
    /// The projections of attention, apart.
    pub q: &'static str,
    /// Keys.
    pub k: &'static str,
    /// Values.
    pub v: &'static str,
    /// The three as one tensor.
    pub qkv: &'static str,
    /// Output projection of the heads.
    pub o: &'static str,
    /// Latent attention: to the short vector of queries.
    pub q_a: &'static str,
    /// Its norm.
    pub q_a_norm: &'static str,
    /// The projection of it to the queries.
    pub q_b: &'static str,
    /// To the short vector of keys and values, and the rotated part of the keys.
    pub kv_a: &'static str,
    /// The norm of the short vector.
    pub kv_a_norm: &'static str,
    /// The projection of it to keys and values.
    pub kv_b: &'static str,
    /// As [`kv_b`](Self::kv_b) in two tensors, of keys `(heads, kv_rank, plain_dim)` and of values `(heads, v_dim, kv_rank)`; the whole
    /// names.
    pub kv_b_split: [&'static str; 2],
    /// The norm of queries.
    pub q_norm: &'static str,
    /// The norm of keys.
    pub k_norm: &'static str,
    /// One more logit for each head; the whole name.
    pub sinks: &'static str,

    /// To what a short convolution gates and convolves.
    pub conv_in: &'static str,
    /// The short convolution.
    pub conv: &'static str,
    /// From it back.
    pub conv_out: &'static str,

    /// The gated delta rule: to queries, keys and values.
    pub delta_qkv: &'static str,
    /// To the gate of its results.
    pub delta_gate: &'static str,
    /// To how much each head writes.
    pub delta_share: &'static str,
    /// To the size of each head's step, which its decay grows with.
    pub delta_step: &'static str,
    /// To queries, keys, values and gates in one tensor.
    pub delta_qkvz: &'static str,
    /// To shares and steps in one tensor.
    pub delta_ba: &'static str,
    /// Added to the step's size; the whole name.
    pub delta_step_bias: &'static str,
    /// The decay for a step of size 1; the whole name.
    pub delta_rate: &'static str,
    /// The convolution of queries, keys and values.
    pub delta_conv: &'static str,
    /// The norm of its results.
    pub delta_norm: &'static str,
    /// From them back.
    pub delta_out: &'static str,

    /// The norm before the MLP.
    pub mlp_norm: &'static str,
    /// The norm of what the MLP gives.
    pub mlp_post_norm: &'static str,
    /// The gate of a gated MLP.
    pub gate: &'static str,
    /// The first layer of a plain MLP, or what is gated.
    pub up: &'static str,
    /// Gate and up as one tensor.
    pub gate_up: &'static str,
    /// Back to the stream.
    pub down: &'static str,
    /// An activation with weights.
    pub activation: &'static str,

    /// Projection of a token to a score per expert.
    pub router: &'static str,
    /// Added to the scores for the choice alone; the whole name.
    pub router_bias: &'static str,
    /// Gate, up and down of an expert.
    pub expert: [&'static str; 3],
    /// Gate, up and down of all experts; the whole name.
    pub experts: [&'static str; 3],
    /// Gate and up of all experts in one tensor, and down; the whole names.
    pub experts_joined: [&'static str; 2],
    /// Biases of gate, up and down of all experts; the whole names.
    pub expert_biases: [&'static str; 3],
    /// The bias of [`experts_joined`](Self::experts_joined), and that of down; the whole names.
    pub experts_joined_biases: [&'static str; 2],
    /// Gate, up and down of the shared expert.
    pub shared: [&'static str; 3],
    /// The gate of the shared expert.
    pub shared_gate: &'static str,
}

impl Names {
    /// The names in most checkpoints on the Hugging Face Hub, after Llama's.
    pub const HUGGING_FACE: Self = Self {
        embedding: "model.embed_tokens",
        positions: "model.embed_positions",
        embedding_norm: "model.embedding_norm",
        layers: "model.layers",
        first_layer: 0,
        final_norm: "model.norm",
        head: "lm_head",
        rope_factors: "",
        rope_factors_long: ["", ""],
        attn_norm: "input_layernorm",
        attn_post_norm: "post_attention_layernorm",
        q: "self_attn.q_proj",
        k: "self_attn.k_proj",
        v: "self_attn.v_proj",
        qkv: "self_attn.qkv_proj",
        o: "self_attn.o_proj",
        q_a: "self_attn.q_a_proj",
        q_a_norm: "self_attn.q_a_layernorm",
        q_b: "self_attn.q_b_proj",
        kv_a: "self_attn.kv_a_proj_with_mqa",
        kv_a_norm: "self_attn.kv_a_layernorm",
        kv_b: "self_attn.kv_b_proj",
        kv_b_split: ["", ""],
        q_norm: "self_attn.q_norm",
        k_norm: "self_attn.k_norm",
        sinks: "self_attn.sinks",
        conv_in: "conv.in_proj",
        conv: "conv.conv",
        conv_out: "conv.out_proj",
        delta_qkv: "linear_attn.in_proj_qkv",
        delta_gate: "linear_attn.in_proj_z",
        delta_share: "linear_attn.in_proj_b",
        delta_step: "linear_attn.in_proj_a",
        delta_qkvz: "linear_attn.in_proj_qkvz",
        delta_ba: "linear_attn.in_proj_ba",
        delta_step_bias: "linear_attn.dt_bias",
        delta_rate: "linear_attn.A_log",
        delta_conv: "linear_attn.conv1d",
        delta_norm: "linear_attn.norm",
        delta_out: "linear_attn.out_proj",
        mlp_norm: "post_attention_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        gate: "mlp.gate_proj",
        up: "mlp.up_proj",
        gate_up: "mlp.gate_up_proj",
        down: "mlp.down_proj",
        activation: "mlp.act_fn",
        router: "mlp.gate",
        router_bias: "mlp.gate.e_score_correction_bias",
        expert: [
            "mlp.experts.{}.gate_proj",
            "mlp.experts.{}.up_proj",
            "mlp.experts.{}.down_proj",
        ],
        experts: ["", "", ""],
        experts_joined: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        expert_biases: ["", "", ""],
        experts_joined_biases: [
            "mlp.experts.gate_up_proj_bias",
            "mlp.experts.down_proj_bias",
        ],
        shared: [
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        ],
        shared_gate: "mlp.shared_expert_gate",
    };

    /// llama.cpp's, in its GGUF files.
    pub const GGUF: Self = Self {
        embedding: "token_embd",
        positions: "position_embd",
        embedding_norm: "token_embd_norm",
        layers: "blk",
        first_layer: 0,
        final_norm: "output_norm",
        head: "output",
        rope_factors: "rope_freqs",
        rope_factors_long: ["rope_factors_short.weight", "rope_factors_long.weight"],
        attn_norm: "attn_norm",
        attn_post_norm: "post_attention_norm",
        q: "attn_q",
        k: "attn_k",
        v: "attn_v",
        qkv: "attn_qkv",
        o: "attn_output",
        q_a: "attn_q_a",
        q_a_norm: "attn_q_a_norm",
        q_b: "attn_q_b",
        kv_a: "attn_kv_a_mqa",
        kv_a_norm: "attn_kv_a_norm",
        kv_b: "attn_kv_b",
        kv_b_split: ["attn_k_b.weight", "attn_v_b.weight"],
        q_norm: "attn_q_norm",
        k_norm: "attn_k_norm",
        sinks: "attn_sinks.weight",
        conv_in: "shortconv.in_proj",
        conv: "shortconv.conv",
        conv_out: "shortconv.out_proj",
        delta_qkv: "attn_qkv",
        delta_gate: "attn_gate",
        delta_share: "ssm_beta",
        delta_step: "ssm_alpha",
        delta_qkvz: "",
        delta_ba: "",
        delta_step_bias: "ssm_dt.bias",
        delta_rate: "ssm_a",
        delta_conv: "ssm_conv1d",
        delta_norm: "ssm_norm",
        delta_out: "ssm_out",
        mlp_norm: "ffn_norm",
        mlp_post_norm: "post_ffw_norm",
        gate: "ffn_gate",
        up: "ffn_up",
        // Files with a merged tensor give it the name of one of the two.
        gate_up: "ffn_up",
        down: "ffn_down",
        activation: "",
        router: "ffn_gate_inp",
        router_bias: "exp_probs_b.bias",
        // Older files have a tensor for each expert.
        expert: ["ffn_gate.{}", "ffn_up.{}", "ffn_down.{}"],
        experts: [
            "ffn_gate_exps.weight",
            "ffn_up_exps.weight",
            "ffn_down_exps.weight",
        ],
        experts_joined: ["", ""],
        expert_biases: [
            "ffn_gate_exps.bias",
            "ffn_up_exps.bias",
            "ffn_down_exps.bias",
        ],
        experts_joined_biases: ["", ""],
        shared: ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"],
        shared_gate: "ffn_gate_inp_shexp",
    };

    /// The names of a language model that is part of a checkpoint with encoders of images or sound: as Transformers 5 writes them, as
    /// Transformers 4 wrote them, and as the language model alone has them. The parts of a layer keep their names.
    pub(in crate::blocks) fn beside_encoders(self) -> [Self; 3] {
        [
            Self {
                embedding: "model.language_model.embed_tokens",
                layers: "model.language_model.layers",
                final_norm: "model.language_model.norm",
                head: "lm_head",
                ..self
            },
            Self {
                embedding: "language_model.model.embed_tokens",
                layers: "language_model.model.layers",
                final_norm: "language_model.model.norm",
                head: "language_model.lm_head",
                ..self
            },
            self,
        ]
    }

    /// Prefix of the names of a layer's parts.
    pub fn layer(&self, index: usize) -> String {
        format!("{}.{}", self.layers, self.first_layer + index)
    }

    /// `name`, of what comes after `layers` layers.
    pub(crate) fn after(&self, layers: usize, name: &str) -> String {
        name.replace("{}", &(self.first_layer + layers).to_string())
    }
}
