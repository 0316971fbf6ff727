//! Models whose files are read asynchronously and in parts: from a server, or from a file that a browser holds. Headers are read first and
//! checked like those of files on disk. Each tensor is then copied to the device in chunks, so that the host never holds more than one
//! chunk of a dense tensor, or one layer's part of a quantised one.

use super::gguf::GgufContent;
use super::network::Files;
use super::weights::{Headers, Place};
use super::{gguf, ChatTemplate, JsonFiles, ModelFiles, SamplingDefaults, Weights};
use crate::error::{brief, unlocated, Doing};
use crate::format::WeightFormat;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::Content;
use candle_core::safetensors::read_header;
use candle_core::{DType, Device, Shape, Tensor};
use candle_transformers::blocks::{Decoder, Reading, Stored, Wanted, WeightSource};
use std::collections::HashMap;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::pin::Pin;

/// Bytes of a tensor per request: a multiple of every element's size.
const PIECE: u64 = 8 << 20;

/// Bytes of the first request to a GGUF file, whose header does not give its length.
const FIRST: u64 = 1 << 20;

/// Maximum number of bytes in transit to the device: a browser keeps them until they have arrived.
const UNDERWAY: u64 = 128 << 20;

/// A pending read.
pub type Bytes<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + 'a>>;

/// A file that is read in parts.
pub trait PartFile {
    /// The name of the file in messages.
    fn name(&self) -> &str;

    /// Number of bytes.
    fn size(&self) -> u64;

    /// Reads `len` bytes from `start` on, which lie in the file.
    fn read(&self, start: u64, len: u64) -> Bytes<'_>;
}

/// The files of a model.
pub enum PartSource {
    /// A GGUF file.
    Gguf(Box<dyn PartFile>),
    /// The files of a Hugging Face folder. The small ones are there already.
    Folder {
        /// `config.json`.
        config: Vec<u8>,
        /// `generation_config.json`, if there is one.
        generation_config: Option<Vec<u8>>,
        /// `tokenizer.json`.
        tokenizer: Vec<u8>,
        /// `tokenizer_config.json`, if there is one: it may have the chat template.
        tokenizer_config: Option<Vec<u8>>,
        /// `chat_template.jinja`, if there is one.
        chat_template: Option<Vec<u8>>,
        /// `model.safetensors`, or the shards.
        weights: Vec<Box<dyn PartFile>>,
    },
}

/// A model whose headers have been read and checked; the weights come later, straight to a device.
pub struct ModelParts {
    files: ModelFiles,
    parts: Vec<Box<dyn PartFile>>,
}

impl ModelParts {
    /// Reads and checks everything but the weights.
    ///
    /// # Errors
    /// The first file, field or tensor that is missing or does not fit, and what a file gives for an error.
    pub async fn open(source: PartSource) -> Result<Self> {
        match source {
            PartSource::Gguf(file) => {
                let content = read_gguf(file.as_ref()).await?;
                let path = Path::new(file.name());
                let files = gguf::describe(path, GgufContent::Header(content, file.size()))?;
                let parts = vec![file];
                Ok(Self { files, parts })
            }
            PartSource::Folder {
                config,
                generation_config,
                tokenizer,
                tokenizer_config,
                chat_template,
                weights: parts,
            } => {
                let weights = headers(&parts).await?;
                let json = JsonFiles {
                    config: (Path::new("config.json"), &config),
                    generation_config: named("generation_config.json", &generation_config),
                    tokenizer: (Path::new("tokenizer.json"), &tokenizer),
                    tokenizer_config: named("tokenizer_config.json", &tokenizer_config),
                    chat_template: named("chat_template.jinja", &chat_template),
                };
                let name = parts.first().map_or("", |part| part.name()).to_string();
                let files = ModelFiles::from_parts(name, json, weights, false)?;
                Ok(Self { files, parts })
            }
        }
    }

    /// The name of the model in messages.
    pub fn name(&self) -> &str {
        &self.files.name
    }

    /// As [`ModelFiles::default_dtype`].
    pub fn default_dtype(&self, device: &Device) -> DType {
        self.files.default_dtype(device)
    }

    /// As [`ModelFiles::format`].
    pub fn format(&self) -> WeightFormat {
        self.files.format()
    }

    /// As [`ModelFiles::total_bytes`].
    pub fn total_bytes(&self) -> u64 {
        self.files.total_bytes()
    }

    /// As [`ModelFiles::max_positions`].
    pub fn max_positions(&self) -> usize {
        self.files.max_positions()
    }

    /// As [`ModelFiles::chat_template`].
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.files.chat_template.as_ref()
    }

    /// As [`ModelFiles::sampling`].
    pub fn sampling(&self) -> SamplingDefaults {
        self.files.sampling
    }

    /// As [`ModelFiles::prompt_tokens`].
    ///
    /// # Errors
    /// As [`ModelFiles::prompt_tokens`].
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        self.files.prompt_tokens(prompt)
    }

    pub(crate) fn into_files(self) -> ModelFiles {
        self.files
    }

    /// As [`ModelFiles::place`].
    pub(crate) async fn place(
        &mut self,
        dtype: DType,
        device: &Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Decoder> {
        let mut source = Parts {
            files: &self.files.network.files,
            parts: &self.parts,
            dtype,
            reader: Reader::new(device, progress),
        };
        let spec = self.files.network.spec.clone();
        let decoder = Decoder::load_async(spec, &mut source, dtype, device).await;
        let decoder = decoder.doing(LOADING)?;
        source.reader.all_there().await?;
        self.files.keeping(decoder).doing(LOADING)
    }
}

/// The tensors of files that are read in parts, one at a time.
struct Parts<'a, 'r> {
    files: &'a Files,
    parts: &'a [Box<dyn PartFile>],
    dtype: DType,
    reader: Reader<'r>,
}

impl Parts<'_, '_> {
    async fn tensor(&mut self, name: &str) -> Result<Stored> {
        match self.files {
            Files::Safetensors(weights) => {
                let place = weights.place(name).ok_or_else(|| missing(name))?;
                let file = self.parts[place.shard].as_ref();
                let tensor = placed_tensor(file, &place, self.dtype, &mut self.reader).await?;
                Ok(tensor.into())
            }
            Files::Gguf(content) => {
                let info = content.tensor_infos.get(name);
                let info = info.ok_or_else(|| missing(name))?;
                let file = self.parts[0].as_ref();
                let start = content.tensor_data_offset + info.offset;
                let mut part = Part {
                    start,
                    bytes: self.reader.read(file, start, content.bytes(name)).await?,
                    file_size: file.size(),
                    position: 0,
                    ran_out: false,
                };
                let tensor = info.read(&mut part, content.tensor_data_offset, &Device::Cpu);
                Ok(tensor.doing(LOADING)?.into())
            }
        }
    }
}

/// A file that may be there, as errors name it.
fn named<'a>(name: &'a str, bytes: &'a Option<Vec<u8>>) -> Option<(&'a Path, &'a [u8])> {
    bytes.as_deref().map(|bytes| (Path::new(name), bytes))
}

fn missing(name: &str) -> Error {
    Error::Tensor {
        file: String::new(),
        tensor: name.to_string(),
        problem: "missing".to_string(),
    }
}

impl WeightSource for Parts<'_, '_> {
    fn contains(&self, name: &str) -> bool {
        match self.files {
            Files::Safetensors(weights) => Headers(weights).contains(name),
            Files::Gguf(content) => content.contains(name),
        }
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        match self.files {
            Files::Safetensors(weights) => Headers(weights).shape(name),
            Files::Gguf(content) => content.shape(name),
        }
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(async move {
            let tensor = self.tensor(wanted.name).await;
            tensor.map_err(candle_core::Error::wrap)
        })
    }
}

/// The operation that errors name.
const LOADING: &str = "loading the weights";

/// Reads weights no faster than the device takes them.
struct Reader<'a> {
    device: &'a Device,
    /// Bytes that may not be there yet.
    underway: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Reader<'a> {
    fn new(device: &'a Device, progress: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            device,
            underway: 0,
            progress,
        }
    }

    async fn read(&mut self, file: &dyn PartFile, start: u64, len: u64) -> Result<Vec<u8>> {
        if self.underway + len > UNDERWAY {
            self.all_there().await?;
        }
        let bytes = file.read(start, len).await?;
        self.underway += len;
        (self.progress)(len);
        Ok(bytes)
    }

    /// Waits for the copies of earlier reads. A cancelled model can then be dropped at once: Chromium opens no other device after one that
    /// is closed with a gigabyte in transit.
    async fn all_there(&mut self) -> Result<()> {
        self.device.synchronize_async().await.doing(LOADING)?;
        self.underway = 0;
        Ok(())
    }
}

async fn placed_tensor(
    file: &dyn PartFile,
    wanted: &Place,
    dtype: DType,
    reader: &mut Reader<'_>,
) -> Result<Tensor> {
    let device = reader.device;
    let piece = |bytes: Vec<u8>| {
        let len = bytes.len() / wanted.stored.size_in_bytes();
        Tensor::from_raw_buffer(&bytes, wanted.stored, &[len], device)?.to_dtype(dtype)
    };
    let flat = if wanted.bytes <= PIECE {
        let bytes = reader.read(file, wanted.start, wanted.bytes).await?;
        piece(bytes).doing(LOADING)?
    } else {
        let elements = wanted.shape.iter().product::<usize>();
        let whole = Tensor::zeros(elements, dtype, device).doing(LOADING)?;
        let mut done = 0;
        while done < wanted.bytes {
            let len = PIECE.min(wanted.bytes - done);
            let bytes = reader.read(file, wanted.start + done, len).await?;
            let first = done as usize / wanted.stored.size_in_bytes();
            piece(bytes)
                .and_then(|piece| whole.slice_set(&piece, 0, first))
                .doing(LOADING)?;
            done += len;
        }
        whole
    };
    flat.reshape(wanted.shape.as_slice()).doing(LOADING)
}

/// Loads all tensors of safetensors files that have a supported dtype, on `device` in `dtype`: for models other than language models. Each
/// file's header is checked before its tensors are read.
///
/// # Errors
/// The first damaged file or tensor, and the files' read errors.
pub async fn load_parts(
    files: &[Box<dyn PartFile>],
    dtype: DType,
    device: &Device,
) -> Result<HashMap<String, Tensor>> {
    let weights = headers(files).await?;
    let mut tensors = HashMap::new();
    let mut progress = |_| ();
    let mut reader = Reader::new(device, &mut progress);
    for (shard, file) in files.iter().enumerate() {
        for wanted in weights.in_shard(shard) {
            let tensor = placed_tensor(file.as_ref(), &wanted, dtype, &mut reader).await?;
            tensors.insert(wanted.name, tensor);
        }
    }
    reader.all_there().await?;
    Ok(tensors)
}

/// The shapes of what [`load_parts`] gives, by name: of the files only the headers are read.
///
/// # Errors
/// The first file that is damaged, and what a file gives for an error.
pub async fn part_shapes(files: &[Box<dyn PartFile>]) -> Result<HashMap<String, Vec<usize>>> {
    let weights = headers(files).await?;
    let places = (0..files.len()).flat_map(|shard| weights.in_shard(shard));
    Ok(places.map(|place| (place.name, place.shape)).collect())
}

/// The tensors that the files list in their headers.
async fn headers(files: &[Box<dyn PartFile>]) -> Result<Weights> {
    let mut weights = Weights::empty();
    for file in files {
        let head = safetensors_head(file.as_ref()).await?;
        let path = Path::new(file.name());
        let header = read_header(&head, file.size());
        let (data_start, header) =
            header.map_err(|err| Error::file(path, brief(unlocated(&err))))?;
        weights.add_header(path, data_start, &header);
    }
    Ok(weights)
}

/// The length of the header and the header.
async fn safetensors_head(file: &dyn PartFile) -> Result<Vec<u8>> {
    let first = file.read(0, file.size().min(8)).await?;
    let Some(len) = first.first_chunk().map(|len| u64::from_le_bytes(*len)) else {
        return Ok(first);
    };
    match len.checked_add(8) {
        // The file begins with something else; what is there is enough to say so.
        Some(len) if len <= file.size() => file.read(0, len).await,
        _ => Ok(first),
    }
}

/// Reads as much as the metadata and the list of tensors take.
async fn read_gguf(file: &dyn PartFile) -> Result<Content> {
    let mut len = FIRST.min(file.size());
    loop {
        let mut part = Part {
            start: 0,
            bytes: file.read(0, len).await?,
            file_size: file.size(),
            position: 0,
            ran_out: false,
        };
        match Content::read(&mut part) {
            Ok(content) => return Ok(content),
            Err(_) if part.ran_out && len < file.size() => len = (len * 4).min(file.size()),
            Err(err) => return Err(Error::file(Path::new(file.name()), brief(&err))),
        }
    }
}

/// A file of which only some bytes have been read.
struct Part {
    /// The offset of the bytes in the file.
    start: u64,
    bytes: Vec<u8>,
    file_size: u64,
    position: u64,
    /// Whether a read outside these bytes was attempted.
    ran_out: bool,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.file_size || buf.is_empty() {
            return Ok(0);
        }
        let here = self.position.checked_sub(self.start);
        let rest = here.and_then(|here| self.bytes.get(usize::try_from(here).ok()?..));
        match rest {
            Some(rest) if !rest.is_empty() => {
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
                self.position += len as u64;
                Ok(len)
            }
            _ => {
                self.ran_out = true;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

impl Seek for Part {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.file_size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::at_once;

    struct Numbers(Vec<f32>);

    impl PartFile for Numbers {
        fn name(&self) -> &str {
            "numbers"
        }

        fn size(&self) -> u64 {
            self.0.len() as u64 * 4
        }

        fn read(&self, start: u64, len: u64) -> Bytes<'_> {
            assert!(len <= PIECE);
            let numbers = &self.0[start as usize / 4..(start + len) as usize / 4];
            let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            Box::pin(std::future::ready(Ok(bytes)))
        }
    }

    #[test]
    fn a_tensor_longer_than_a_piece_is_put_together() {
        let rows = PIECE as usize / 4 / 1000 + 5;
        let numbers: Vec<f32> = (0..rows * 1000 + 7).map(|i| i as f32).collect();
        let file = Numbers(numbers.clone());
        let wanted = Place {
            name: "weight".to_string(),
            shard: 0,
            start: 28,
            bytes: rows as u64 * 4000,
            shape: vec![rows, 1000],
            stored: DType::F32,
        };
        let mut arrived = Vec::new();
        let mut progress = |bytes| arrived.push(bytes);
        let mut reader = Reader::new(&Device::Cpu, &mut progress);
        let placing = placed_tensor(&file, &wanted, DType::F32, &mut reader);
        let tensor = at_once(placing).unwrap();
        assert_eq!(reader.underway, wanted.bytes);
        assert_eq!(tensor.dims(), [rows, 1000]);
        let found: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(found, numbers[7..]);
        assert_eq!(arrived, [PIECE, wanted.bytes - PIECE]);
    }

    #[test]
    fn reading_waits_for_the_device() {
        let file = Numbers(vec![0.; 100]);
        let mut progress = |_| ();
        let mut reader = Reader::new(&Device::Cpu, &mut progress);
        reader.underway = UNDERWAY - 8;
        for left in [UNDERWAY, 8] {
            at_once(reader.read(&file, 0, 8)).unwrap();
            assert_eq!(reader.underway, left);
        }
        at_once(reader.all_there()).unwrap();
        assert_eq!(reader.underway, 0);
    }

    #[test]
    fn a_part_knows_what_it_lacks() {
        let mut part = Part {
            start: 2,
            bytes: vec![3, 4],
            file_size: 6,
            position: 0,
            ran_out: false,
        };
        assert_eq!(part.seek(SeekFrom::End(-4)).unwrap(), 2);
        let mut found = [0; 2];
        part.read_exact(&mut found).unwrap();
        assert_eq!((found, part.ran_out), ([3, 4], false));
        assert!(part.read_exact(&mut found).is_err() && part.ran_out);
        assert_eq!(part.seek(SeekFrom::Current(2)).unwrap(), 6);
        assert_eq!(part.read(&mut found).unwrap(), 0);
    }
}
