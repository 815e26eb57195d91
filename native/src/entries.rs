//! Kernels over entries, records and frames (docs/format.md), for the broker, its replicas and the client.
//!
//! Each answers for bytes in which everything is as it should be. For all others it returns None, and the Python twin decides, so that
//! every error is named in one place. A caller must leave the bytes alone during a call, as with any reader that releases the interpreter.

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

mod checking;
mod dispatch;
mod keys;
mod layout;
mod producing;
mod reading;
mod sealing;
mod tree;

/// The interpreter is released for more than this, some 20 µs of work: for less, waiting for its return costs more than it gains.
const DETACH_OVER_BYTES: usize = 128 << 10;

fn detached<R: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> R + Send) -> R {
    if bytes > DETACH_OVER_BYTES {
        py.detach(work)
    } else {
        work()
    }
}

fn not_contiguous() -> PyErr {
    PyBufferError::new_err("the bytes are not contiguous")
}

/// The bytes of a buffer, for the time that the buffer is held.
fn bytes_of(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    let found = buffer.as_slice_ptr().ok_or_else(not_contiguous)?;
    if found.is_empty() {
        return Ok(&[]);
    }
    // SAFETY: the exporter keeps this memory in place until the buffer is released, which the borrow outlives not; it is contiguous and
    // holds bytes, all of whose values are valid. The callers of the kernels never write to bytes while a kernel reads them.
    Ok(unsafe { slice::from_raw_parts(found.cast::<u8>().as_ptr(), found.len()) })
}

/// The same, to be written.
fn bytes_of_mut(buffer: &mut PyBuffer<u8>) -> PyResult<&mut [u8]> {
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the bytes cannot be written"));
    }
    let found = buffer.as_slice_ptr().ok_or_else(not_contiguous)?;
    if found.is_empty() {
        return Ok(&mut []);
    }
    // SAFETY: as above; the exporter allows writing, and the batch that is written belongs to the caller alone.
    Ok(unsafe { slice::from_raw_parts_mut(found.cast::<u8>().as_ptr(), found.len()) })
}

/// Numbers as the native-endian bytes of an array.
fn array<'py, T: Copy, const N: usize>(
    py: Python<'py>,
    values: &[T],
    raw: impl Fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, values.len() * N, |out| {
        for (place, value) in out.chunks_exact_mut(N).zip(values) {
            place.copy_from_slice(&raw(*value));
        }
        Ok(())
    })
}

fn array_i64<'py>(py: Python<'py>, values: &[i64]) -> PyResult<Bound<'py, PyBytes>> {
    array(py, values, i64::to_ne_bytes)
}

fn array_i32<'py>(py: Python<'py>, values: &[i32]) -> PyResult<Bound<'py, PyBytes>> {
    array(py, values, i32::to_ne_bytes)
}

/// Seal a batch where it lies; the last chain CRC.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn seal(
    py: Python<'_>,
    mut data: PyBuffer<u8>,
    starts: PyBuffer<i64>,
    sizes: PyBuffer<i32>,
    queues: PyBuffer<i32>,
    queue_offsets: PyBuffer<i64>,
    positions: PyBuffer<i64>,
    store_ms: i64,
    store_host: [u8; 8],
    first_index: i64,
    term: i64,
    prev_chain: u32,
) -> PyResult<Option<u32>> {
    let (starts, sizes, positions) = (starts.to_vec(py)?, sizes.to_vec(py)?, positions.to_vec(py)?);
    let (queues, queue_offsets) = (queues.to_vec(py)?, queue_offsets.to_vec(py)?);
    let common = sealing::Common {
        first_index,
        term,
        store_ms,
        store_host,
    };
    let bytes = bytes_of_mut(&mut data)?;
    Ok(detached(py, bytes.len(), || {
        let rows = sealing::Rows {
            starts: &starts,
            sizes: &sizes,
            queues: &queues,
            queue_offsets: &queue_offsets,
            positions: &positions,
        };
        sealing::seal(bytes, &rows, &common, prev_chain)
    }))
}

/// Of at most `few` entries (last chain, edges, splits), as lists; of more (last chain, edges), as an array of int64. Claims that fit no
/// field are left to the twin, as all other wrong claims are.
#[pyfunction]
fn verify<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    first_index: &Bound<'py, PyAny>,
    term: &Bound<'py, PyAny>,
    pos: &Bound<'py, PyAny>,
    prev_chain: &Bound<'py, PyAny>,
    few: usize,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let (Ok(first_index), Ok(term), Ok(pos), Ok(prev_chain)) = (
        first_index.extract::<i64>(),
        term.extract::<i64>(),
        pos.extract::<i64>(),
        prev_chain.extract::<u32>(),
    ) else {
        return Ok(None);
    };
    let bytes = bytes_of(&data)?;
    let found = detached(py, bytes.len(), || {
        checking::verify(bytes, first_index, term, pos, prev_chain, few)
    });
    let Some(found) = found else { return Ok(None) };
    let Some(parts) = found.parts else {
        return Ok(Some(
            (found.last_chain, array_i64(py, &found.edges)?).into_pyobject(py)?,
        ));
    };
    let record = |at: usize| at - layout::HEADER_BYTES;
    let splits: Vec<_> = (parts.iter())
        .map(|part| {
            (
                record(part.body_end),
                record(part.topic_at),
                record(part.topic_end),
                record(part.properties_at),
            )
        })
        .collect();
    Ok(Some(
        (found.last_chain, found.edges, splits).into_pyobject(py)?,
    ))
}

/// (topics, topic_of, queues, queue_offsets, tags_codes, physical_offsets, sizes, origins, flags), the columns as arrays.
#[pyfunction]
fn columns<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    starts: PyBuffer<i64>,
    sizes: PyBuffer<i32>,
    timer_topic: &str,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let (starts, sizes) = (starts.to_vec(py)?, sizes.to_vec(py)?);
    let bytes = bytes_of(&data)?;
    let Some(found) = detached(py, bytes.len(), || {
        dispatch::columns(bytes, &starts, &sizes, timer_topic.as_bytes())
    }) else {
        return Ok(None);
    };
    let made = (
        PyTuple::new(py, found.topics)?,
        array_i32(py, &found.topic_of)?,
        array_i32(py, &found.queues)?,
        array_i64(py, &found.queue_offsets)?,
        array_i64(py, &found.tags_codes)?,
        array_i64(py, &found.physical_offsets)?,
        array_i32(py, &dispatch::record_sizes(&sizes))?,
        array_i64(py, &found.origins)?,
        array_i32(py, &found.flags)?,
    );
    Ok(Some(made.into_pyobject(py)?))
}

/// (starts, sizes, queues, names of user properties) of a frame in which all but these names is right.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn check_frame<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    sizes: PyBuffer<u8>,
    record_magic: i32,
    topic: &[u8],
    log_tag: u32,
    producer_id: u32,
    epoch: u16,
    first_sequence: u64,
    queues: i32,
    max_body_bytes: usize,
    max_entry_bytes: usize,
    max_properties_bytes: usize,
    max_user_properties: usize,
    compressions: Vec<(i32, Vec<u8>)>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let frame = producing::Frame {
        record_magic,
        topic,
        log_tag,
        producer_id,
        epoch,
        first_sequence,
    };
    let limits = producing::Limits {
        queues,
        body_bytes: max_body_bytes,
        entry_bytes: max_entry_bytes,
        properties_bytes: max_properties_bytes,
        user_properties: max_user_properties,
        compressions: &compressions,
    };
    let (bytes, sizes) = (bytes_of(&data)?, sizes.to_vec(py)?);
    let Some(found) = detached(py, bytes.len(), || {
        producing::check(bytes, &sizes, &frame, &limits)
    }) else {
        return Ok(None);
    };
    let (starts, sizes) = (array_i64(py, &found.starts)?, array_i32(py, &found.sizes)?);
    Ok(Some(
        (starts, sizes, array_i32(py, &found.queues)?, found.names).into_pyobject(py)?,
    ))
}

/// An object with bytes, held.
enum Piece<'py> {
    Bytes(Bound<'py, PyBytes>),
    Other(PyBuffer<u8>),
}

fn held<'py>(objects: Vec<Bound<'py, PyAny>>) -> PyResult<Vec<Piece<'py>>> {
    let one = |object: Bound<'py, PyAny>| match object.cast_into::<PyBytes>() {
        Ok(bytes) => Ok(Piece::Bytes(bytes)),
        Err(other) => PyBuffer::get(&other.into_inner()).map(Piece::Other),
    };
    objects.into_iter().map(one).collect()
}

fn pieces_of<'a>(held: &'a [Piece<'_>]) -> PyResult<Vec<&'a [u8]>> {
    let one = |piece: &'a Piece<'_>| match piece {
        Piece::Bytes(bytes) => Ok(bytes.as_bytes()),
        Piece::Other(buffer) => bytes_of(buffer),
    };
    held.iter().map(one).collect()
}

/// (sizes, entries) of a frame to be sent.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn build_frame<'py>(
    py: Python<'py>,
    record_magic: i32,
    topic: &[u8],
    log_tag: u32,
    producer_id: u32,
    epoch: u16,
    first_sequence: u64,
    bodies: Vec<Bound<'py, PyAny>>,
    queues: PyBuffer<i32>,
    born_ms: PyBuffer<i64>,
    sysflags: PyBuffer<i32>,
    rests: Option<Vec<Bound<'py, PyAny>>>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let frame = producing::Frame {
        record_magic,
        topic,
        log_tag,
        producer_id,
        epoch,
        first_sequence,
    };
    // Anything but contiguous bytes is left to the caller's own code.
    let (Ok(bodies), Ok(rests)) = (held(bodies), rests.map(held).transpose()) else {
        return Ok(None);
    };
    let (Ok(bodies), Ok(rests)) = (
        pieces_of(&bodies),
        rests.as_deref().map(pieces_of).transpose(),
    ) else {
        return Ok(None);
    };
    let messages = producing::Messages {
        bodies,
        queues: queues.to_vec(py)?,
        born_ms: born_ms.to_vec(py)?,
        sysflags: sysflags.to_vec(py)?,
        rests,
    };
    let Some(sizes) = producing::sizes_of(&frame, &messages) else {
        return Ok(None);
    };
    let total = sizes.iter().map(|size| *size as usize).sum();
    let mut built = None;
    let entries = PyBytes::new_with(py, total, |out| {
        built = detached(py, total, || {
            producing::build(out, &sizes, &frame, &messages)
        });
        Ok(())
    })?;
    if built.is_none() {
        return Ok(None);
    }
    Ok(Some(
        (array(py, &sizes, u32::to_le_bytes)?, entries).into_pyobject(py)?,
    ))
}

/// (starts, sizes, queues, queue offsets, SYSFLAGs, body lengths, topic offsets and lengths, property offsets and lengths) of received entries.
#[pyfunction]
fn read_entries<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    sizes: PyBuffer<u8>,
    verify: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let (bytes, sizes) = (bytes_of(&data)?, sizes.to_vec(py)?);
    let Some(found) = detached(py, bytes.len(), || reading::read(bytes, &sizes, verify)) else {
        return Ok(None);
    };
    let made = (
        array_i64(py, &found.starts)?,
        array_i32(py, &found.sizes)?,
        array_i32(py, &found.queues)?,
        array_i64(py, &found.queue_offsets)?,
        array_i32(py, &found.sysflags)?,
        array_i64(py, &found.body_lengths)?,
        array_i64(py, &found.topic_at)?,
        array_i64(py, &found.topic_lengths)?,
        array_i64(py, &found.property_offsets)?,
        array_i64(py, &found.property_lengths)?,
    );
    Ok(Some(made.into_pyobject(py)?))
}

/// (entry_of, hashes, physical offsets, store times) of the keys of entries.
#[pyfunction]
fn key_columns<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    starts: PyBuffer<i64>,
    sizes: PyBuffer<i32>,
    keyless_topics: Vec<String>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let (starts, sizes) = (starts.to_vec(py)?, sizes.to_vec(py)?);
    let bytes = bytes_of(&data)?;
    let keyless: Vec<&[u8]> = keyless_topics.iter().map(String::as_bytes).collect();
    let Some(found) = detached(py, bytes.len(), || {
        keys::keys(bytes, &starts, &sizes, &keyless)
    }) else {
        return Ok(None);
    };
    let made = (
        array_i64(py, &found.entry_of)?,
        array_i32(py, &found.hashes)?,
        array_i64(py, &found.physical_offsets)?,
        array_i64(py, &found.store_ms)?,
    );
    Ok(Some(made.into_pyobject(py)?))
}

/// (bytes taken, count of leaves, peaks) of a tree of entries behind those that lie whole in `data`.
#[pyfunction]
fn grow_tree<'py>(
    py: Python<'py>,
    count: u64,
    peaks: &[u8],
    data: PyBuffer<u8>,
) -> PyResult<Option<(usize, u64, Bound<'py, PyBytes>)>> {
    let bytes = bytes_of(&data)?;
    let Some(mut tree) = tree::Peaks::new(count, peaks) else {
        return Ok(None);
    };
    let Some(taken) = detached(py, bytes.len(), || tree.grow(bytes)) else {
        return Ok(None);
    };
    let peaks = PyBytes::new(py, &tree.hashes.concat());
    Ok(Some((taken, tree.count, peaks)))
}

pub fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "entries")?;
    module.add_function(wrap_pyfunction!(seal, &module)?)?;
    module.add_function(wrap_pyfunction!(verify, &module)?)?;
    module.add_function(wrap_pyfunction!(columns, &module)?)?;
    module.add_function(wrap_pyfunction!(grow_tree, &module)?)?;
    module.add_function(wrap_pyfunction!(key_columns, &module)?)?;
    module.add_function(wrap_pyfunction!(check_frame, &module)?)?;
    module.add_function(wrap_pyfunction!(build_frame, &module)?)?;
    module.add_function(wrap_pyfunction!(read_entries, &module)?)?;
    Ok(module)
}
