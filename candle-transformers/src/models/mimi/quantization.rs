//! Residual vector quantisation: codebooks, each for what the ones before it left.

use candle_core::{bail, Result, Tensor, D};
use candle_nn::{conv1d_no_bias, linear, Conv1d, Linear, VarBuilder};

use crate::blocks::codec::{residual_decode, residual_encode, Codebook, Stage};

/// The least that a vector counts as having been used.
const LEAST_USAGE: f64 = 1e-5;

/// The vectors of a codebook, each with a number.
#[derive(Debug, Clone)]
pub struct EuclideanCodebook {
    vectors: Codebook,
}

impl EuclideanCodebook {
    /// Loads `embed_sum` (`codebook_size`, `dim`) and `cluster_usage` (`codebook_size`), whose quotients are the vectors.
    ///
    /// # Errors
    /// A size is 0, or a tensor is missing or has another shape.
    pub fn new(dim: usize, codebook_size: usize, vb: VarBuilder) -> Result<Self> {
        if dim == 0 || codebook_size == 0 {
            bail!("mimi: a codebook of {codebook_size} vectors with {dim} numbers is empty")
        }
        let sum = vb.get((codebook_size, dim), "embed_sum")?;
        let usage = vb.get(codebook_size, "cluster_usage")?;
        let usage = usage.maximum(LEAST_USAGE)?.unsqueeze(1)?;
        let vectors = Codebook::by_distance(sum.broadcast_div(&usage)?)?;
        Ok(Self { vectors })
    }

    /// The same as [`encode`](Self::encode). They differ in Candle.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_very_slow(&self, xs: &Tensor) -> Result<Tensor> {
        self.encode(xs)
    }

    /// The same as [`encode`](Self::encode). They differ in Candle.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_slow(&self, xs: &Tensor) -> Result<Tensor> {
        self.encode(xs)
    }

    /// The numbers, u32 (…), of the vectors at the smallest distance from `xs` (…, dim). Runs on every device.
    ///
    /// # Errors
    /// `xs` has another last size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        self.vectors.nearest(xs)
    }

    /// The vectors (…, dim) with these numbers (…).
    ///
    /// # Errors
    /// The numbers are not integers, or not below the number of vectors.
    pub fn decode(&self, indexes: &Tensor) -> Result<Tensor> {
        self.vectors.lookup(indexes)
    }
}

/// A codebook for frames, with projections to its vectors and back if these have another size.
#[derive(Debug, Clone)]
pub struct VectorQuantization {
    project_in: Option<Linear>,
    project_out: Option<Linear>,
    codebook: EuclideanCodebook,
}

impl VectorQuantization {
    /// Loads `codebook`, and `project_in` and `project_out` if `codebook_dim` is not `dim`.
    ///
    /// # Errors
    /// Those of [`EuclideanCodebook::new`].
    pub fn new(
        dim: usize,
        codebook_size: usize,
        codebook_dim: Option<usize>,
        vb: VarBuilder,
    ) -> Result<Self> {
        let inner = codebook_dim.unwrap_or(dim);
        let project = |from, to, name: &str| {
            let load = || linear(from, to, vb.pp(name));
            (inner != dim).then(load).transpose()
        };
        Ok(Self {
            project_in: project(dim, inner, "project_in")?,
            project_out: project(inner, dim, "project_out")?,
            codebook: EuclideanCodebook::new(inner, codebook_size, vb.pp("codebook"))?,
        })
    }

    /// Codes, u32 (batch, frames), of frames (batch, dim, frames).
    ///
    /// # Errors
    /// The frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = xs.transpose(D::Minus1, D::Minus2)?;
        self.codebook.encode(&xs.apply(&self.project_in.as_ref())?)
    }

    /// Frames (batch, dim, frames) of codes (batch, frames).
    ///
    /// # Errors
    /// Those of [`EuclideanCodebook::decode`].
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        let vectors = self.codebook.decode(codes)?;
        let frames = vectors.apply(&self.project_out.as_ref())?;
        frames.transpose(D::Minus1, D::Minus2)
    }
}

impl Stage for VectorQuantization {
    fn numbers(&self, xs: &Tensor) -> Result<Tensor> {
        self.encode(xs)
    }

    fn values(&self, numbers: &Tensor) -> Result<Tensor> {
        self.decode(numbers)
    }
}

/// Codebooks, each for what the ones before it left.
#[derive(Debug, Clone)]
pub struct ResidualVectorQuantization {
    layers: Vec<VectorQuantization>,
}

impl ResidualVectorQuantization {
    /// Loads `layers.0` and so on, `n_q` of [`VectorQuantization::new`].
    ///
    /// # Errors
    /// Those of [`VectorQuantization::new`].
    pub fn new(
        n_q: usize,
        dim: usize,
        codebook_size: usize,
        codebook_dim: Option<usize>,
        vb: VarBuilder,
    ) -> Result<Self> {
        let vb = vb.pp("layers");
        let load = |i| VectorQuantization::new(dim, codebook_size, codebook_dim, vb.pp(i));
        let layers = (0..n_q).map(load).collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// Codes, u32 (codebooks, batch, frames), of frames (batch, dim, frames).
    ///
    /// # Errors
    /// There are no codebooks, or the frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        Tensor::stack(&residual_encode(&self.layers, xs)?, 0)
    }

    /// Frames (batch, dim, frames) of codes (codebooks, batch, frames).
    ///
    /// # Errors
    /// There are no codebooks, the codes are of another number of codebooks, or those of [`EuclideanCodebook::decode`].
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let (layers, codes) = (self.layers.len(), xs.dims());
        if codes.len() != 3 || codes[0] != layers || layers == 0 {
            bail!("mimi: the codes are {codes:?}; they must be ({layers}, batch, frames) for existing codebooks")
        }
        let codes: Vec<_> = (0..layers).map(|i| xs.get(i)).collect::<Result<_>>()?;
        residual_decode("mimi", &self.layers, &codes)
    }
}

/// [`ResidualVectorQuantization`] between projections of frames.
#[derive(Debug, Clone)]
pub struct ResidualVectorQuantizer {
    vq: ResidualVectorQuantization,
    input_proj: Option<Conv1d>,
    output_proj: Option<Conv1d>,
}

impl ResidualVectorQuantizer {
    /// Loads `layers.0` and so on, `n_q` codebooks of `bins` vectors with `dim` numbers, and `input_proj` and `output_proj`, which are there
    /// if the sizes differ or `force_projection`.
    ///
    /// # Errors
    /// Those of [`VectorQuantization::new`].
    pub fn new(
        dim: usize,
        input_dim: Option<usize>,
        output_dim: Option<usize>,
        n_q: usize,
        bins: usize,
        force_projection: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let project = |from, to, name: &str| {
            let load = || conv1d_no_bias(from, to, 1, Default::default(), vb.pp(name));
            (from != to || force_projection).then(load).transpose()
        };
        Ok(Self {
            input_proj: project(input_dim.unwrap_or(dim), dim, "input_proj")?,
            output_proj: project(dim, output_dim.unwrap_or(dim), "output_proj")?,
            vq: ResidualVectorQuantization::new(n_q, dim, bins, None, vb)?,
        })
    }

    /// Codes, u32 (batch, codebooks, frames), of frames (batch, input_dim, frames).
    ///
    /// # Errors
    /// There are no codebooks, or the frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let codes = self.vq.encode(&xs.apply(&self.input_proj.as_ref())?)?;
        codes.transpose(0, 1)
    }

    /// Frames (batch, output_dim, frames) of codes (batch, codebooks, frames).
    ///
    /// # Errors
    /// Those of [`ResidualVectorQuantization::decode`].
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        let frames = self.vq.decode(&codes.transpose(0, 1)?)?;
        frames.apply(&self.output_proj.as_ref())
    }
}

/// Two quantisers of the same frames: the first codebook is separate and encodes the content of speech; the others encode its sound.
#[derive(Debug, Clone)]
pub struct SplitResidualVectorQuantizer {
    first: ResidualVectorQuantizer,
    /// If there is more than one codebook.
    rest: Option<ResidualVectorQuantizer>,
    n_q: usize,
}

impl SplitResidualVectorQuantizer {
    /// Loads `semantic_residual_vector_quantizer` and, if `n_q` is more than 1, `acoustic_residual_vector_quantizer`, both with projections.
    ///
    /// # Errors
    /// `n_q` is 0, or those of [`ResidualVectorQuantizer::new`].
    pub fn new(
        dim: usize,
        input_dim: Option<usize>,
        output_dim: Option<usize>,
        n_q: usize,
        bins: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        if n_q == 0 {
            bail!("mimi: at least 1 codebook is required")
        }
        let load = |n_q, name: &str| {
            let vb = vb.pp(name);
            ResidualVectorQuantizer::new(dim, input_dim, output_dim, n_q, bins, true, vb)
        };
        let rest = || load(n_q - 1, "acoustic_residual_vector_quantizer");
        Ok(Self {
            first: load(1, "semantic_residual_vector_quantizer")?,
            rest: (n_q > 1).then(rest).transpose()?,
            n_q,
        })
    }

    /// Codes, u32 (batch, `n_q`, frames), of frames (batch, input_dim, frames).
    ///
    /// # Errors
    /// The frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let first = self.first.encode(xs)?;
        match &self.rest {
            Some(rest) => Tensor::cat(&[first, rest.encode(xs)?], 1),
            None => Ok(first),
        }
    }

    /// Frames (batch, output_dim, frames) of codes (batch, `n_q`, frames).
    ///
    /// # Errors
    /// The codes are of another number of codebooks, or those of [`EuclideanCodebook::decode`].
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        match *codes.dims() {
            [_, codebooks, frames] if codebooks == self.n_q && frames > 0 => {}
            _ => bail!(
                "mimi: codes must be (batch, {}, frames) with at least 1 frame, not {:?}",
                self.n_q,
                codes.dims()
            ),
        }
        let first = self.first.decode(&codes.narrow(1, 0, 1)?)?;
        match &self.rest {
            Some(rest) => first + rest.decode(&codes.narrow(1, 1, self.n_q - 1)?)?,
            None => Ok(first),
        }
    }
}
