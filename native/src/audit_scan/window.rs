//! The entries of one window of a log file (docs/format.md §2 and §3), in one pass, and what the audit derives from them.

use std::collections::HashMap;

use super::bytes::{i32_at, i64_at, length, u32_at};
use super::record::{self, Around, NativeId, Record};

const HEADER_BYTES: usize = 48;
/// A header and the smallest record.
pub const ENTRY_BYTES_MIN: usize = HEADER_BYTES + 91;
/// Every file ends with a blank of at least this size, or could.
const BLANK_BYTES_MIN: usize = 8;
pub const MAGIC: i32 = 1;
const INDEX_UNIT_BYTES: usize = 32;
pub const QUEUE_UNIT_BYTES: usize = 20;
/// Indexes from here on are damage.
const INDEX_MAX: i64 = 1 << 48;
const CONFIG_TOPIC: &[u8] = b"rmq_sys_ledgermq_config";
/// Tags code of `topic`, by which a record on `CONFIG_TOPIC` changes a topic's queues.
const TOPIC_CODE: i64 = 110_546_223;

/// Where a window begins, and what came before it.
pub struct Start {
    pub pos: i64,
    pub room: usize,
    pub left: usize,
    pub chain: u32,
    pub index: Option<i64>,
    pub term: i64,
    pub store_ms: i64,
    pub deep: bool,
}

/// Entries to return.
pub struct Noted {
    pub topic: Vec<u8>,
    pub code: Option<i64>,
}

/// `count` entries in order, which end at `stop`; `more`: the window, not the log, ends there. Of the entry behind them only the header was read.
pub struct Window<'a> {
    pub stop: usize,
    pub more: bool,
    pub count: usize,
    pub index: i64,
    pub first_term: i64,
    pub first_size: i64,
    pub first_input: [u8; 40],
    pub first_chain: u32,
    pub first_store_ms: i64,
    pub last_term: i64,
    pub last_chain: u32,
    pub last_store_ms: i64,
    pub last_at: usize,
    /// The last row that is no plain record of the raft topic.
    pub last_plain_row: Option<usize>,
    pub index_units: Vec<u8>,
    pub topics: Vec<&'a [u8]>,
    pub queues: Vec<QueueRun>,
    pub producers: Vec<ProducerRun>,
    pub groups: Vec<GroupEvent<'a>>,
    pub noted: Vec<Note>,
}

pub struct QueueRun {
    pub topic: usize,
    pub queue: i32,
    pub first: i64,
    pub last: i64,
    pub first_row: usize,
    pub first_at: usize,
    pub last_row: usize,
    pub last_at: usize,
    pub units: Vec<u8>,
}

#[derive(Clone, Copy)]
pub struct Numbered {
    pub sequence: i64,
    pub epoch: i64,
    pub row: usize,
    pub at: usize,
}

pub struct ProducerRun {
    pub producer: u32,
    pub first: Numbered,
    pub last: Numbered,
}

pub struct GroupEvent<'a> {
    pub row: usize,
    pub at: usize,
    pub size: usize,
    pub topic: Option<usize>,
    pub group: &'a [u8],
    pub queue: i32,
}

pub struct Note {
    pub row: usize,
    pub at: usize,
    pub size: usize,
    pub kind: usize,
}

/// What is at some place of a window.
enum Here {
    Entry(usize),
    /// The window ends before an entry that may be here does; it has at least so many bytes.
    Cut(usize),
    /// No reader takes these bytes for an entry.
    Nothing,
    /// A header with a wrong field, which may be an entry's.
    Doubtful,
}

fn look(data: &[u8], at: usize, begin: i64, room: usize) -> Here {
    let Some(header) = data.get(at..at.saturating_add(ENTRY_BYTES_MIN)) else {
        return Here::Cut(ENTRY_BYTES_MIN);
    };
    let fields = (
        i32_at(header, 0),
        i32_at(header, 4),
        i64_at(header, 24),
        i32_at(header, 44),
    );
    let (Some(magic), Some(size), Some(pos), Some(body)) = fields else {
        return Here::Doubtful;
    };
    let placed = i64::try_from(at).ok().and_then(|at| begin.checked_add(at)) == Some(pos);
    let sized = magic == MAGIC && i64::from(size) == i64::from(body) + 48;
    if !placed && !sized {
        return Here::Nothing;
    }
    match length(size) {
        Some(size) if placed && sized && size >= ENTRY_BYTES_MIN && at + size <= room => {
            if at + size > data.len() {
                Here::Cut(size)
            } else {
                Here::Entry(size)
            }
        }
        _ => Here::Doubtful,
    }
}

/// The places and sizes of the entries of a window, and how they end.
pub struct Entries {
    pub places: Vec<(usize, usize)>,
    pub stop: usize,
    pub more: bool,
    pub needed: usize,
}

/// None if a header has a wrong field: then it takes more to say where entries are.
pub fn find(data: &[u8], pos: i64, room: usize) -> Option<Entries> {
    let mut found = Entries {
        places: Vec::with_capacity(data.len() / 512),
        stop: 0,
        more: data.len() < room,
        needed: 0,
    };
    loop {
        match look(data, found.stop, pos, room) {
            Here::Entry(size) => {
                found.places.push((found.stop, size));
                found.stop += size;
            }
            Here::Cut(size) => {
                found.needed = size;
                return Some(found);
            }
            Here::Nothing => {
                // As the Python walk does: in the second half of a window, what would confirm a damaged header may be behind its end.
                found.more = found.more && 2 * found.stop > data.len();
                return Some(found);
            }
            Here::Doubtful => return None,
        }
    }
}

/// Everything that the audit keeps of a window; None if it has no entry, or one that breaks a rule.
pub fn scan<'a>(data: &'a [u8], start: &Start, noted: &[Noted]) -> Option<Window<'a>> {
    let entries = find(data, start.pos, start.room)?;
    // The last entry of a window belongs to the next one, unless the log ends here.
    let count = entries
        .places
        .len()
        .checked_sub(usize::from(entries.more))?;
    let (first_at, first_size) = *entries.places[..count].first()?;
    let index = i64_at(data, first_at + 8)?;
    if !(0..INDEX_MAX).contains(&index) || start.index.is_some_and(|wanted| wanted != index) {
        return None;
    }
    let mut pass = Pass::new(data, start, noted, index, count);
    pass.window.more = entries.more;
    pass.window.stop = entries
        .places
        .get(count)
        .map_or(entries.stop, |(at, _)| *at);
    pass.window.first_size = i64::try_from(first_size).ok()?;
    for (row, (at, size)) in entries.places[..count].iter().enumerate() {
        pass.entry(row, *at, *size)?;
    }
    for (row, (at, _)) in entries.places.iter().enumerate().skip(count) {
        if i64_at(data, at + 8)? != pass.index_of(row)? {
            return None;
        }
    }
    Some(pass.finish())
}

/// One pass over the entries of a window.
struct Pass<'a, 'b> {
    data: &'a [u8],
    start: &'b Start,
    noted: &'b [Noted],
    window: Window<'a>,
    chain: u32,
    term: i64,
    store_ms: i64,
    flag: Option<i32>,
    numbers: HashMap<&'a [u8], usize>,
    /// Of each topic: places in `noted`, and whether it is the raft topic or the one that changes topics.
    traits: Vec<Traits>,
    last_topic: Option<usize>,
    queues: HashMap<(usize, i32), usize>,
    producers: HashMap<u32, usize>,
    groups: HashMap<(usize, &'a [u8]), i32>,
}

struct Traits {
    noted: Vec<usize>,
    raft: bool,
    config: bool,
}

impl<'a, 'b> Pass<'a, 'b> {
    fn new(data: &'a [u8], start: &'b Start, noted: &'b [Noted], index: i64, count: usize) -> Self {
        let window = Window {
            stop: 0,
            more: false,
            count,
            index,
            first_term: 0,
            first_size: 0,
            first_input: [0; 40],
            first_chain: 0,
            first_store_ms: 0,
            last_term: 0,
            last_chain: 0,
            last_store_ms: 0,
            last_at: 0,
            last_plain_row: None,
            index_units: Vec::with_capacity(count * INDEX_UNIT_BYTES),
            topics: Vec::new(),
            queues: Vec::new(),
            producers: Vec::new(),
            groups: Vec::new(),
            noted: Vec::new(),
        };
        Self {
            data,
            start,
            noted,
            window,
            chain: start.chain,
            term: start.term,
            store_ms: start.store_ms,
            flag: None,
            numbers: HashMap::new(),
            traits: Vec::new(),
            last_topic: None,
            queues: HashMap::new(),
            producers: HashMap::new(),
            groups: HashMap::new(),
        }
    }

    fn index_of(&self, row: usize) -> Option<i64> {
        self.window.index.checked_add(i64::try_from(row).ok()?)
    }

    fn entry(&mut self, row: usize, at: usize, size: usize) -> Option<()> {
        let data = self.data;
        let entry = data.get(at..at.checked_add(size)?)?;
        let index = i64_at(entry, 8)?;
        let term = i64_at(entry, 16)?;
        // A file must have room for a blank behind each entry.
        if index != self.index_of(row)?
            || term < self.term
            || at + size + BLANK_BYTES_MIN > self.start.left
        {
            return None;
        }
        let body = &entry[HEADER_BYTES..];
        let body_crc = crc32c::crc32c(body);
        let mut input = [0; 40];
        input[..36].copy_from_slice(&entry[..36]);
        input[36..].copy_from_slice(&body_crc.to_be_bytes());
        let chain = crc32c::crc32c_append(self.chain, &input);
        if u32_at(entry, 40)? != body_crc || u32_at(entry, 36)? != chain {
            return None;
        }
        let channel = i32_at(entry, 32)?;
        let pos = i64_at(entry, 24)?;
        let around = Around {
            index,
            term,
            pos,
            channel,
            flag_before: self.flag,
            deep: self.start.deep,
        };
        let last_topic = self.last_topic.map(|topic| self.window.topics[topic]);
        let numbers = &self.numbers;
        let known = |topic: &[u8]| last_topic == Some(topic) || numbers.contains_key(topic);
        let record = record::read(body, &around, known)?;
        if record.store_ms < self.store_ms {
            return None;
        }
        if row == 0 {
            self.window.first_term = term;
            self.window.first_input = input;
            self.window.first_chain = chain;
            self.window.first_store_ms = record.store_ms;
        }
        self.term = term;
        self.store_ms = record.store_ms;
        self.chain = chain;
        self.flag = Some(record.flag);
        self.window.last_at = at;
        self.index_unit(pos, i32_at(entry, 4)?, index, term);
        let topic = self.topic(record.topic);
        self.queue(
            &record,
            topic,
            row,
            at,
            pos.checked_add(48)?,
            i32_at(body, 0)?,
        )?;
        if let Some(id) = record.id {
            self.producer(id, row, at)?;
        }
        self.events(&record, topic, row, at, size);
        self.note(&record, topic, channel, row, at, size);
        Some(())
    }

    fn index_unit(&mut self, pos: i64, size: i32, index: i64, term: i64) {
        let mut unit = [0; INDEX_UNIT_BYTES];
        unit[..4].copy_from_slice(&MAGIC.to_be_bytes());
        unit[4..12].copy_from_slice(&pos.to_be_bytes());
        unit[12..16].copy_from_slice(&size.to_be_bytes());
        unit[16..24].copy_from_slice(&index.to_be_bytes());
        unit[24..].copy_from_slice(&term.to_be_bytes());
        self.window.index_units.extend_from_slice(&unit);
    }

    fn topic(&mut self, topic: &'a [u8]) -> usize {
        if let Some(last) = self.last_topic {
            if self.window.topics[last] == topic {
                return last;
            }
        }
        let number = match self.numbers.get(topic) {
            Some(number) => *number,
            None => {
                let number = self.window.topics.len();
                self.numbers.insert(topic, number);
                self.window.topics.push(topic);
                let wanted = self.noted.iter().enumerate();
                self.traits.push(Traits {
                    noted: wanted
                        .filter(|(_, each)| each.topic == topic)
                        .map(|(at, _)| at)
                        .collect(),
                    raft: topic == record::RAFT_TOPIC,
                    config: topic == CONFIG_TOPIC,
                });
                number
            }
        };
        self.last_topic = Some(number);
        number
    }

    /// Queue offsets are consecutive; collect the units that the consume queue must have.
    fn queue(
        &mut self,
        record: &Record<'a>,
        topic: usize,
        row: usize,
        at: usize,
        pos: i64,
        total_size: i32,
    ) -> Option<()> {
        let offset = record.queue_offset;
        let queues = &mut self.window.queues;
        let number = *self.queues.entry((topic, record.queue)).or_insert_with(|| {
            queues.push(QueueRun {
                topic,
                queue: record.queue,
                first: offset,
                last: offset.wrapping_sub(1),
                first_row: row,
                first_at: at,
                last_row: row,
                last_at: at,
                units: Vec::new(),
            });
            queues.len() - 1
        });
        let run = &mut queues[number];
        if offset < 0 || run.last.checked_add(1)? != offset {
            return None;
        }
        run.last = offset;
        run.last_row = row;
        run.last_at = at;
        let mut unit = [0; QUEUE_UNIT_BYTES];
        unit[..8].copy_from_slice(&pos.to_be_bytes());
        unit[8..12].copy_from_slice(&total_size.to_be_bytes());
        unit[12..].copy_from_slice(&record.tags_code.to_be_bytes());
        run.units.extend_from_slice(&unit);
        Some(())
    }

    /// Sequence numbers of a producer are consecutive, and its epochs never fall.
    fn producer(&mut self, id: NativeId, row: usize, at: usize) -> Option<()> {
        let here = Numbered {
            sequence: id.sequence,
            epoch: id.epoch,
            row,
            at,
        };
        let runs = &mut self.window.producers;
        match self.producers.get(&id.producer) {
            None => {
                self.producers.insert(id.producer, runs.len());
                runs.push(ProducerRun {
                    producer: id.producer,
                    first: here,
                    last: here,
                });
            }
            Some(number) => {
                let run = &mut runs[*number];
                if run.last.sequence.checked_add(1)? != id.sequence || id.epoch < run.last.epoch {
                    return None;
                }
                run.last = here;
            }
        }
        Some(())
    }

    fn events(&mut self, record: &Record<'a>, topic: usize, row: usize, at: usize, size: usize) {
        if record.has_group {
            for group in record::groups(record.properties) {
                if self.groups.insert((topic, group), record.queue) != Some(record.queue) {
                    self.window.groups.push(GroupEvent {
                        row,
                        at,
                        size,
                        topic: Some(topic),
                        group,
                        queue: record.queue,
                    });
                }
            }
        }
        if self.traits[topic].config && record.tags_code == TOPIC_CODE {
            self.groups.clear();
            self.window.groups.push(GroupEvent {
                row,
                at,
                size,
                topic: None,
                group: b"",
                queue: 0,
            });
        }
    }

    fn note(
        &mut self,
        record: &Record<'a>,
        topic: usize,
        channel: i32,
        row: usize,
        at: usize,
        size: usize,
    ) {
        let traits = &self.traits[topic];
        if !traits.raft || channel != 0 {
            self.window.last_plain_row = Some(row);
        }
        for kind in &traits.noted {
            if self.noted[*kind]
                .code
                .is_none_or(|code| code == record.tags_code)
            {
                self.window.noted.push(Note {
                    row,
                    at,
                    size,
                    kind: *kind,
                });
            }
        }
        if channel == 1 {
            self.window.noted.push(Note {
                row,
                at,
                size,
                kind: self.noted.len(),
            });
        }
    }

    fn finish(mut self) -> Window<'a> {
        self.window.last_term = self.term;
        self.window.last_chain = self.chain;
        self.window.last_store_ms = self.store_ms;
        self.window.producers.sort_by_key(|run| run.producer);
        self.window
    }
}
