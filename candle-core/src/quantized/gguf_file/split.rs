//! Models split over several GGUF files, named `NAME-00001-of-00003.gguf` and so on, in the format of llama.cpp's `llama-gguf-split`: each
//! file has a part of the tensors, and the first one has the metadata of the model.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Content, TensorInfo, Value};
use crate::{Error, Result};

/// The metadata keys of a part: its number from 0, the number of parts, and the number of tensors of the model.
const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Upper bound on the number of parts of a model.
const MAX_PARTS: usize = 1 << 12;

fn error<T>(path: &Path, problem: String) -> Result<T> {
    Err(Error::Msg(problem).bt().with_path(path))
}

fn number(metadata: &HashMap<String, Value>, key: &str) -> Result<Option<usize>> {
    let Some(value) = metadata.get(key) else {
        return Ok(None);
    };
    let number = match value {
        // The format's reference implementation writes signed numbers too.
        Value::I16(n) => usize::try_from(*n).ok(),
        Value::I32(n) => usize::try_from(*n).ok(),
        Value::I64(n) => usize::try_from(*n).ok(),
        value => value.to_u64().ok().and_then(|n| usize::try_from(n).ok()),
    };
    match number {
        Some(number) if number <= 1 << 31 => Ok(Some(number)),
        _ => Err(Error::Msg(format!(
            "metadata {key}: {value:?}; expected a whole number"
        ))
        .bt()),
    }
}

/// The number of this file, from 0, and the number of files of a split model, from the metadata of one of its files; `None` if the file is
/// a complete model. (Upstream has no counterpart.)
///
/// # Errors
/// If `split.no` or `split.count` is not a valid number of a part.
pub fn part_of(metadata: &HashMap<String, Value>) -> Result<Option<(usize, usize)>> {
    let count = match number(metadata, COUNT)? {
        None | Some(0 | 1) => return Ok(None),
        Some(count) => count,
    };
    let no = number(metadata, NO)?.unwrap_or(0);
    if no >= count || count > MAX_PARTS {
        return Err(Error::Msg(format!(
            "metadata {NO} is {no} and {COUNT} {count}; expected a part below the count, and at most {MAX_PARTS} parts"
        ))
        .bt());
    }
    Ok(Some((no, count)))
}

/// The names of all files of a split model, if `name` is one of them: `NAME-00001-of-00003.gguf`. (Upstream has no counterpart.)
///
/// ```
/// let parts = candle_core::quantized::gguf_file::names_of_parts("tiny-00002-of-00002.gguf").expect("a part");
/// assert_eq!(parts, ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"]);
/// ```
pub fn names_of_parts(name: &str) -> Option<Vec<String>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<usize>().ok()).flatten()
    };
    let (no, count) = (number(no)?, number(count)?);
    let fits = (1..=count).contains(&no) && count <= MAX_PARTS;
    let names = 1..=count;
    fits.then(|| {
        names
            .map(|no| format!("{stem}{}", ending(no - 1, count)))
            .collect()
    })
}

/// Suffix of the name of part `no`, from 0.
fn ending(no: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// The paths of all parts of a model, for the path of its part `no`.
fn part_paths(path: &Path, no: usize, count: usize) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(&ending(no, count))) else {
        return error(
            path,
            format!(
                "part {} of {count} of a model (split.no, split.count), whose name has to end with {}: give all parts the names that they \
                 were published with",
                no + 1,
                ending(no, count)
            ),
        );
    };
    let part = |no| path.with_file_name(format!("{stem}{}", ending(no, count)));
    Ok((0..count).map(part).collect())
}

/// The content of the concatenated files of `parts`, given with their lengths: offsets of tensors count from the start of the first.
fn joined(parts: Vec<(PathBuf, Content, u64)>) -> Result<Content> {
    let count = parts.len();
    let mut joined: Option<Content> = None;
    let mut start = 0u64;
    for (no, (path, mut part, len)) in parts.into_iter().enumerate() {
        let found = part_of(&part.metadata).map_err(|err| err.with_path(&path))?;
        if found != Some((no, count)) {
            let found = found.map_or("a whole model".to_string(), |(no, count)| {
                format!("part {} of {count}", no + 1)
            });
            let expected = format!("part {} of {count}", no + 1);
            return error(
                &path,
                format!("the file is {found} by its metadata, but {expected} by its name"),
            );
        }
        let first = joined.as_ref().map_or(0, |first| first.tensor_data_offset);
        let move_tensor = |info: &mut TensorInfo| -> Result<()> {
            info.range(part.tensor_data_offset, len)?;
            if no > 0 {
                let place = start
                    .checked_add(part.tensor_data_offset)
                    .and_then(|place| place.checked_add(info.offset))
                    .and_then(|place| place.checked_sub(first));
                info.offset =
                    place.ok_or_else(|| Error::Msg("the offset is out of range".into()).bt())?;
            }
            Ok(())
        };
        for (name, info) in &mut part.tensor_infos {
            move_tensor(info)
                .map_err(|err| err.context(format!("tensor {name:?}")).with_path(&path))?;
        }
        match &mut joined {
            None => joined = Some(part),
            Some(joined) => {
                for (name, info) in part.tensor_infos {
                    if joined.tensor_infos.insert(name.clone(), info).is_some() {
                        return error(&path, format!("tensor {name:?} is in an earlier part too"));
                    }
                }
            }
        }
        start = start.saturating_add(len);
        if no + 1 == count {
            let Some(mut content) = joined.take() else {
                break;
            };
            let (found, wanted) = (
                content.tensor_infos.len(),
                number(&content.metadata, TENSORS)?,
            );
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                return error(
                    &path,
                    format!("the {count} parts have {found} tensors, but {TENSORS} is {wanted}: are all parts of one download?"),
                );
            }
            // The result is a complete model, without the keys of a part.
            for key in [NO, COUNT, TENSORS] {
                content.metadata.remove(key);
            }
            return Ok(content);
        }
    }
    Err(Error::Msg("a model of 0 parts".into()).bt())
}

/// Opens every file of a model, given the path of one: `open` returns a file's content, a value to keep, and its length.
pub(super) fn open_parts<T>(
    path: &Path,
    open: impl Fn(&Path) -> Result<(Content, T, u64)>,
) -> Result<(Content, Vec<(T, u64)>)> {
    let (content, kept, len) = open(path)?;
    let Some((no, count)) = part_of(&content.metadata).map_err(|err| err.with_path(path))? else {
        return Ok((content, vec![(kept, len)]));
    };
    let (mut parts, mut all) = (Vec::new(), Vec::new());
    let mut opened = Some((content, kept, len));
    for (i, part) in part_paths(path, no, count)?.into_iter().enumerate() {
        if !part.is_file() {
            return error(
                &part,
                format!(
                    "no such file; it is part {} of {count} of the model that {} belongs to: download it into the same folder",
                    i + 1,
                    path.display()
                ),
            );
        }
        let (content, kept, len) = match opened.take_if(|_| i == no) {
            Some(opened) => opened,
            None => open(&part)?,
        };
        parts.push((part, content, len));
        all.push((kept, len));
    }
    Ok((joined(parts)?, all))
}

/// The files of a model as one stream.
#[derive(Debug)]
pub struct PartsReader {
    parts: Vec<(File, u64)>,
    position: u64,
}

/// Reads a model of one file, or a split model of which `path` is any file. The content has the tensors of all files, and the reader is the
/// concatenated stream. Both can be passed to any function with a [`Content`] and its reader. (Upstream has no counterpart.)
///
/// # Errors
/// If a file is missing, is part of another model, or as for [`Content::read`]; with the path.
pub fn open<P: AsRef<Path>>(path: P) -> Result<(Content, PartsReader)> {
    let open = |path: &Path| {
        let read = || {
            let file = File::open(path)?;
            let len = file.metadata()?.len();
            let content = Content::read(&mut std::io::BufReader::new(&file))?;
            Ok((content, file, len))
        };
        read().map_err(|err: Error| err.with_path(path))
    };
    let (content, parts) = open_parts(path.as_ref(), open)?;
    Ok((content, PartsReader { parts, position: 0 }))
}

impl PartsReader {
    fn len(&self) -> u64 {
        let lens = self.parts.iter().map(|(_, len)| *len);
        lens.fold(0, u64::saturating_add)
    }
}

impl Read for PartsReader {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut start = 0;
        for (file, len) in &mut self.parts {
            let end = start + *len;
            if self.position < end {
                file.seek(SeekFrom::Start(self.position - start))?;
                let most = usize::try_from(end - self.position).unwrap_or(usize::MAX);
                let most = most.min(buf.len());
                let read = file.read(&mut buf[..most])?;
                self.position += read as u64;
                return Ok(read);
            }
            start = end;
        }
        Ok(0)
    }
}

impl Seek for PartsReader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let problem = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        self.position = position.ok_or_else(problem)?;
        Ok(self.position)
    }
}
