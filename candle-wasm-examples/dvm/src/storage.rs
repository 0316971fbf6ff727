//! A file of the browser's origin-private file system, as the journal's storage. <https://fs.spec.whatwg.org>

use js_sys::{Reflect, Uint8Array};
use redb::StorageBackend;
use std::fmt;
use std::io::{Error, ErrorKind};
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    DomException, FileSystemDirectoryHandle, FileSystemFileHandle, FileSystemGetFileOptions,
    FileSystemReadWriteOptions, FileSystemSyncAccessHandle, WorkerGlobalScope,
};

/// The reason why there is no file.
pub enum Problem {
    /// Another worker has it open.
    InUse,
    /// The browser has no such files, or not here.
    Missing(String),
}

/// A file that this worker alone has open.
pub struct File(FileSystemSyncAccessHandle);

// SAFETY: a module without threads has one, which is where all of this happens.
unsafe impl Send for File {}
// SAFETY: as above.
unsafe impl Sync for File {}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}

impl File {
    /// Opens a file, or makes it.
    pub async fn open(name: &str) -> Result<Self, Problem> {
        let missing = |err: JsValue| Problem::Missing(browser::files::message(&err));
        let scope: WorkerGlobalScope = js_sys::global().dyn_into().map_err(|_| {
            Problem::Missing("browsers offer such files only in dedicated workers".to_string())
        })?;
        // Missing if the page is not a secure context.
        let storage = Reflect::get(&scope.navigator(), &"storage".into()).map_err(missing)?;
        if storage.is_undefined() {
            return Err(Problem::Missing(
                "the browser offers no storage for this page".to_string(),
            ));
        }
        let storage: web_sys::StorageManager = storage.unchecked_into();
        let folder: FileSystemDirectoryHandle = JsFuture::from(storage.get_directory())
            .await
            .map_err(missing)?
            .unchecked_into();
        let options = FileSystemGetFileOptions::new();
        options.set_create(true);
        let file: FileSystemFileHandle =
            JsFuture::from(folder.get_file_handle_with_options(name, &options))
                .await
                .map_err(missing)?
                .unchecked_into();
        match JsFuture::from(file.create_sync_access_handle()).await {
            Ok(handle) => Ok(Self(handle.unchecked_into())),
            Err(err) => {
                let taken = err
                    .dyn_ref::<DomException>()
                    .is_some_and(|err| err.name() == "NoModificationAllowedError");
                Err(if taken { Problem::InUse } else { missing(err) })
            }
        }
    }
}

fn failed(err: JsValue) -> Error {
    Error::other(browser::files::message(&err))
}

fn at(offset: u64) -> FileSystemReadWriteOptions {
    let options = FileSystemReadWriteOptions::new();
    options.set_at(offset as f64);
    options
}

impl StorageBackend for File {
    fn len(&self) -> Result<u64, Error> {
        self.0.get_size().map(|size| size as u64).map_err(failed)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = self.0.read_with_u8_array_and_options(out, &at(offset));
        if read.map_err(failed)? as usize == out.len() {
            Ok(())
        } else {
            Err(ErrorKind::UnexpectedEof.into())
        }
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.0.truncate_with_f64(len as f64).map_err(failed)
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.0.flush().map_err(failed)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        // A copy: where the heap is shared, browsers take no view of it here.
        let bytes = Uint8Array::from(data);
        let written = self
            .0
            .write_with_js_u8_array_and_options(&bytes, &at(offset));
        if written.map_err(failed)? as usize == data.len() {
            Ok(())
        } else {
            Err(ErrorKind::StorageFull.into())
        }
    }

    fn close(&self) -> Result<(), Error> {
        self.0.close();
        Ok(())
    }
}
