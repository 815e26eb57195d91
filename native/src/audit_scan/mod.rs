//! The auditor's own decoder, written against docs/format.md. It shares no code with `entries`, so that an error in one is found by the other.
//!
//! One call goes over a window of a log file. It either finds every entry in order and returns what the audit keeps of the window, or it
//! returns nothing: then the Python scan reads the same window, and finds and words what is wrong. Nothing is judged here.

mod bytes;
mod record;
mod tree;
mod window;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use tree::Tower;
use window::{Noted, Start};

/// A window in which every entry is in order. Row numbers count its entries; places are bytes of the window.
#[pyclass(frozen, get_all, module = "ledgermq_native.audit_scan")]
struct Clean {
    stop: usize,
    more: bool,
    count: usize,
    index: i64,
    first_term: i64,
    first_size: i64,
    first_input: Py<PyBytes>,
    first_chain: u32,
    first_store_ms: i64,
    last_term: i64,
    last_chain: u32,
    last_store_ms: i64,
    last_at: usize,
    last_plain_row: Option<usize>,
    index_units: Py<PyBytes>,
    queues: Vec<Py<Queue>>,
    producers: Vec<Py<Producer>>,
    groups: Vec<Py<GroupEvent>>,
    noted: Vec<Py<Note>>,
}

/// The messages of one queue in a window, which have consecutive queue offsets; `units` are the units they must have in the consume queue.
#[pyclass(frozen, get_all, module = "ledgermq_native.audit_scan")]
struct Queue {
    topic: Py<PyBytes>,
    queue: i32,
    first: i64,
    last: i64,
    count: usize,
    first_row: usize,
    first_at: usize,
    last_row: usize,
    last_at: usize,
    units: Py<PyBytes>,
}

/// The messages of one native producer in a window, which have consecutive sequence numbers and epochs that do not fall.
#[pyclass(frozen, get_all, module = "ledgermq_native.audit_scan")]
struct Producer {
    producer: u32,
    first_sequence: i64,
    first_epoch: i64,
    first_row: usize,
    first_at: usize,
    last_sequence: i64,
    last_epoch: i64,
    last_row: usize,
    last_at: usize,
}

/// A message whose group is in another queue than in its previous message of this window, or has none in it; without a topic: a record that
/// changes topics.
#[pyclass(frozen, get_all, module = "ledgermq_native.audit_scan")]
struct GroupEvent {
    row: usize,
    at: usize,
    size: usize,
    topic: Option<Py<PyBytes>>,
    group: Py<PyBytes>,
    queue: i32,
}

/// An entry that the caller wants to read.
#[pyclass(frozen, get_all, module = "ledgermq_native.audit_scan")]
struct Note {
    row: usize,
    at: usize,
    size: usize,
    kind: usize,
}

/// Go over a window, whose first byte is at absolute position `pos`, `room` bytes before the end of the checked part of its file and `left`
/// bytes before the end of the file. `chain`, `term` and `store_ms` are those of the entry before, `index` is the index that the first entry
/// must have; None: any. `wanted`: topics, each with a tags code or None, whose entries are returned in `noted`; the kind of an entry is
/// its place in `wanted`, or the length of `wanted` for a membership record. None: not every entry is in order.
#[pyfunction]
#[pyo3(signature = (window, *, pos, room, left, chain, index, term, store_ms, deep, wanted))]
#[allow(clippy::too_many_arguments)]
fn scan<'py>(
    py: Python<'py>,
    window: &Bound<'py, PyBytes>,
    pos: i64,
    room: usize,
    left: usize,
    chain: u32,
    index: Option<i64>,
    term: i64,
    store_ms: i64,
    deep: bool,
    wanted: Vec<(Vec<u8>, Option<i64>)>,
) -> PyResult<Option<Clean>> {
    let data = window.as_bytes();
    let start = Start {
        pos,
        room,
        left,
        chain,
        index,
        term,
        store_ms,
        deep,
    };
    let noted: Vec<Noted> = wanted
        .into_iter()
        .map(|(topic, code)| Noted { topic, code })
        .collect();
    match py.detach(|| window::scan(data, &start, &noted)) {
        Some(found) => Ok(Some(to_python(py, found)?)),
        None => Ok(None),
    }
}

/// Places, sizes, the place behind the last entry, whether the window ends there, bytes that the next entry needs.
type Found<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, bool, usize);

/// The entries of a window as the Python walk finds them: places and sizes (each i64 in the byte order of this machine), the place behind
/// the last one, whether the window and not the log ends there, and how many bytes the next entry needs. None: a header has a wrong field.
#[pyfunction]
#[pyo3(signature = (window, *, pos, room))]
fn find<'py>(
    py: Python<'py>,
    window: &Bound<'py, PyBytes>,
    pos: i64,
    room: usize,
) -> Option<Found<'py>> {
    let data = window.as_bytes();
    let (places, sizes, found) = py.detach(|| {
        let found = window::find(data, pos, room)?;
        let column = |pick: fn(&(usize, usize)) -> usize| -> Vec<u8> {
            let numbers = found.places.iter().map(pick);
            numbers
                .flat_map(|number| (number as i64).to_ne_bytes())
                .collect()
        };
        Some((column(|entry| entry.0), column(|entry| entry.1), found))
    })?;
    let columns = (PyBytes::new(py, &places), PyBytes::new(py, &sizes));
    Some((columns.0, columns.1, found.stop, found.more, found.needed))
}

/// Height and root of perfect trees, the place behind the last entry, whether something else than an entry begins there.
type Grown<'py> = (Vec<(u32, Bound<'py, PyBytes>)>, usize, bool);

/// Add the entries that lie whole in `data`, from its start on, to perfect trees, the highest first.
#[pyfunction]
fn grow_tree<'py>(py: Python<'py>, towers: Vec<Tower>, data: &Bound<'py, PyBytes>) -> Grown<'py> {
    let (mut towers, data) = (towers, data.as_bytes());
    let (stop, stuck) = py.detach(|| tree::grow(&mut towers, data));
    let towers = towers
        .iter()
        .map(|(height, root)| (*height, PyBytes::new(py, root)));
    (towers.collect(), stop, stuck)
}

fn to_python(py: Python<'_>, found: window::Window<'_>) -> PyResult<Clean> {
    let bytes = |data: &[u8]| PyBytes::new(py, data).unbind();
    let topics: Vec<Py<PyBytes>> = found.topics.iter().map(|topic| bytes(topic)).collect();
    let topic = |number: usize| topics[number].clone_ref(py);
    let queues = found.queues.iter().map(|run| {
        let made = Queue {
            topic: topic(run.topic),
            queue: run.queue,
            first: run.first,
            last: run.last,
            count: run.units.len() / window::QUEUE_UNIT_BYTES,
            first_row: run.first_row,
            first_at: run.first_at,
            last_row: run.last_row,
            last_at: run.last_at,
            units: bytes(&run.units),
        };
        Py::new(py, made)
    });
    let producers = found.producers.iter().map(|run| {
        let made = Producer {
            producer: run.producer,
            first_sequence: run.first.sequence,
            first_epoch: run.first.epoch,
            first_row: run.first.row,
            first_at: run.first.at,
            last_sequence: run.last.sequence,
            last_epoch: run.last.epoch,
            last_row: run.last.row,
            last_at: run.last.at,
        };
        Py::new(py, made)
    });
    let groups = found.groups.iter().map(|event| {
        let made = GroupEvent {
            row: event.row,
            at: event.at,
            size: event.size,
            topic: event.topic.map(topic),
            group: bytes(event.group),
            queue: event.queue,
        };
        Py::new(py, made)
    });
    let noted = found.noted.iter().map(|note| {
        let made = Note {
            row: note.row,
            at: note.at,
            size: note.size,
            kind: note.kind,
        };
        Py::new(py, made)
    });
    Ok(Clean {
        queues: queues.collect::<PyResult<_>>()?,
        producers: producers.collect::<PyResult<_>>()?,
        groups: groups.collect::<PyResult<_>>()?,
        noted: noted.collect::<PyResult<_>>()?,
        stop: found.stop,
        more: found.more,
        count: found.count,
        index: found.index,
        first_term: found.first_term,
        first_size: found.first_size,
        first_input: bytes(&found.first_input),
        first_chain: found.first_chain,
        first_store_ms: found.first_store_ms,
        last_term: found.last_term,
        last_chain: found.last_chain,
        last_store_ms: found.last_store_ms,
        last_at: found.last_at,
        last_plain_row: found.last_plain_row,
        index_units: bytes(&found.index_units),
    })
}

pub fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "audit_scan")?;
    module.add_function(wrap_pyfunction!(scan, &module)?)?;
    module.add_function(wrap_pyfunction!(find, &module)?)?;
    module.add_function(wrap_pyfunction!(grow_tree, &module)?)?;
    module.add_class::<Clean>()?;
    module.add_class::<Queue>()?;
    module.add_class::<Producer>()?;
    module.add_class::<GroupEvent>()?;
    module.add_class::<Note>()?;
    Ok(module)
}
