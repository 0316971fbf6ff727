//! Where the tensors come from.

use std::future::Future;
use std::io::{Read, Seek};
use std::pin::Pin;

use candle_core::quantized::gguf_file::{Content, MmapedContent};
use candle_core::quantized::{ggml_file, QTensor};
use candle_core::{Device, Result, Shape};

/// Tensors by their names in a GGUF file, such as `blk.0.attn_q.weight`.
pub trait WeightSource {
    /// The shape of a tensor, slowest dimension first; `None` if there is none of that name.
    fn shape(&self, name: &str) -> Option<Shape>;

    /// Reads a tensor, most often to the CPU, from where it is placed on its device. Each is asked for once.
    ///
    /// # Errors
    /// If there is none of that name, or its data cannot be read.
    fn read(&mut self, name: &str) -> Result<QTensor>;
}

/// A tensor on its way.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Result<QTensor>> + 'a>>;

/// As [`WeightSource`], where tensors have to be waited for: a server, or a file that a browser reads.
pub trait AsyncWeightSource {
    /// The shape of a tensor, slowest dimension first; `None` if there is none of that name.
    fn shape(&self, name: &str) -> Option<Shape>;

    /// Reads a tensor, as [`WeightSource::read`] does.
    fn read<'a>(&'a mut self, name: &'a str) -> Reading<'a>;
}

/// A mapped file. On the CPU its tensors stay in the file's pages.
impl WeightSource for &MmapedContent {
    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read(&mut self, name: &str) -> Result<QTensor> {
        self.tensor(name, &Device::Cpu)
    }
}

/// A file that is read tensor by tensor.
pub(super) struct GgufReader<'a, R> {
    pub(super) content: Content,
    pub(super) reader: &'a mut R,
}

impl<R: Read + Seek> WeightSource for GgufReader<'_, R> {
    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.content.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read(&mut self, name: &str) -> Result<QTensor> {
        self.content.tensor(self.reader, name, &Device::Cpu)
    }
}

/// A GGML file, which is older and has other names.
pub(super) struct GgmlTensors(pub(super) ggml_file::Content);

impl WeightSource for GgmlTensors {
    fn shape(&self, name: &str) -> Option<Shape> {
        let tensor = self.0.tensors.get(&ggml_name(name))?;
        Some(tensor.shape().clone())
    }

    fn read(&mut self, name: &str) -> Result<QTensor> {
        self.0.remove(&ggml_name(name))
    }
}

/// The name that a GGML file has for a tensor of a GGUF file.
fn ggml_name(name: &str) -> String {
    let in_layer = || {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let part = match part.strip_suffix(".weight")? {
            "attn_norm" => "attention_norm",
            "attn_q" => "attention.wq",
            "attn_k" => "attention.wk",
            "attn_v" => "attention.wv",
            "attn_output" => "attention.wo",
            "ffn_gate" => "feed_forward.w1",
            "ffn_down" => "feed_forward.w2",
            "ffn_up" => "feed_forward.w3",
            other => other,
        };
        Some(format!("layers.{layer}.{part}.weight"))
    };
    match name {
        "token_embd.weight" => "tok_embeddings.weight".into(),
        "output_norm.weight" => "norm.weight".into(),
        other => in_layer().unwrap_or_else(|| other.into()),
    }
}
