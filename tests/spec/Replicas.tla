------------------------------ MODULE Replicas ------------------------------
(* The replicas of one broker group, their messages, and the controller: what raft/ decides, without time.

   There is no network: what a leader sends is a piece of its log of that term, and that log only grows: `reign[t]` keeps it, and a follower
   may receive any piece of it at any time, also after the leader is gone. So messages are lost, late, repeated and out of order. A vote is
   granted and counted in two steps; an acknowledgement reaches the leader at once, but the leader may commit by it at any later time. *)
EXTENDS Appointments

CONSTANTS
    Founders,    \* the voters of the founding entry
    FirstRule,   \* the rule of the founding entry
    TermMax, LengthMax, CrashesMax, WipesMax, ChangesMax, WishesMax, DecisionsMax,   \* bounds of a model
    Early,       \* whether acknowledgements of the classes memory and master are given
    Late,        \* whether messages of leaders and candidates that are gone still arrive
    Rises,       \* whether unsynced truncated entries may rise again after a crash
    Eager        \* whether steps that only enable others are taken together with those (see Model.tla)

VARIABLES
    term, vote,      \* of each node; durable in the step that changes them (storage/state/hard_state.py)
    role,            \* "rests", "campaigns" or "leads"
    votes,           \* of a candidate: who voted for it
    log,             \* of each node: [terms, configs]
    synced,          \* the last entry on stable storage (LogState.durable_index)
    verified,        \* the last entry known to equal the leader's (LogState.verified_index)
    commit,          \* LogState.commit_index
    cut,             \* logs that were cut off and not overwritten durably: a crash may bring them back
    dir,             \* number of the node's directory; it grows when the directory is lost
    acks,            \* acks[l][n]: the last reply of n to the leader l (raft/progress.py, Peer)
    known,           \* position in `appointments` of the latest one that the node knows; 0 for none (Isr.appointment)
    joining,         \* of a master: the nodes that it asked to add (Isr.joining)
    appointments,    \* all decisions of the controller, in order
    wishes,          \* requests on their way to the controller
    reign,           \* term -> its leader, the log it had, the commit index it told; None
    asked,           \* vote requests that are still under way
    ledger,          \* the terms of all entries that were ever committed
    ledgerIn,        \* the terms in which they were committed
    early,           \* entries that were acknowledged before they were committed
    crashes, wipes, changes, lossy   \* counters of the bounds; whether a crash lost entries

replicas == <<term, vote, role, votes, log, synced, verified, commit, cut, dir, acks, known, joining>>
decided  == <<appointments, wishes>>
history  == <<reign, asked, ledger, ledgerIn, early>>
bounds   == <<crashes, wipes, changes, lossy>>
vars     == <<replicas, decided, history, bounds>>

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Last(s)   == s[Len(s)]

---------------------------------------------------------------------------
(* Logs *)

Empty == [terms |-> <<>>, configs |-> <<>>]
Founding == [voters |-> Founders, learners |-> {}, returning |-> {}, rule |-> FirstRule, towards |-> None,
             since |-> IF FirstRule = InSync THEN 1 ELSE 0, dirs |-> [n \in Nodes |-> IF n \in Founders THEN 1 ELSE 0]]
First == [terms |-> <<0>>, configs |-> <<[at |-> 1, members |-> Founding]>>]

End(l)      == Len(l.terms)
EndTerm(l)  == IF End(l) = 0 THEN 0 ELSE l.terms[End(l)]
Prefix(l, k) == IF k >= End(l) THEN l ELSE
    [terms |-> SubSeq(l.terms, 1, k), configs |-> SelectSeq(l.configs, LAMBDA c : c.at <= k)]
Extended(l, t, k) == [l EXCEPT !.terms = @ \o [i \in 1..k |-> t]]
Changed(l, t, m)  == [terms |-> Append(l.terms, t), configs |-> Append(l.configs, [at |-> End(l) + 1, members |-> m])]

(* The log of a new directory. *)
Fresh(n) == IF n \in Founders THEN First ELSE Empty

(* The last entry that both logs have in common. Terms never fall along a log, so the first difference is the end of it. *)
Common(a, b) ==
    LET most == Min(End(a), End(b))
        same(k) == a.terms[k] = b.terms[k]
    IN IF most = 0 THEN 0
       ELSE IF same(most) THEN most
       ELSE (CHOOSE k \in 1..most : ~same(k) /\ (k = 1 \/ same(k - 1))) - 1

---------------------------------------------------------------------------
(* Membership: raft/membership.py, class Membership *)

Members(n)      == IF log[n].configs = <<>> THEN Nobody ELSE Last(log[n].configs).members
ChangedAt(n)    == IF log[n].configs = <<>> THEN 0 ELSE Last(log[n].configs).at
Before(n)       == IF Len(log[n].configs) < 2 THEN Members(n) ELSE log[n].configs[Len(log[n].configs) - 1].members
Pending(n)      == ChangedAt(n) > commit[n]

AdmittedBy(m, n) == m.dirs[n] = dir[n]
Admitted(n)      == AdmittedBy(Members(n), n)
(* leaves(): the removal of this voter is not committed yet. *)
Leaves(n) ==
    /\ n \notin Members(n).voters
    /\ Pending(n)
    /\ n \in Before(n).voters
    /\ AdmittedBy(Before(n), n)
    /\ Members(n).dirs[n] # 0 => Admitted(n)
(* counts(): whether the copy and the vote of this replica count. *)
Counts(n) ==
    \/ n \in Members(n).voters /\ Guard("directory-compared", Admitted(n))
    \/ n \in Members(n).learners /\ (~Pending(n) /\ Admitted(n))
    \/ Leaves(n)
(* may_vote(): `names` are the directories by which the candidate's members know the voters. *)
MayVote(n, names) ==
    /\ Guard("directory-compared", names[n] = dir[n])
    /\ \/ Counts(n)
       \/ Guard("directory-compared", Members(n).dirs[n] \in {0, dir[n]})

(* The appointment that counts for the members in force: Isr.agreed. None: no entry of `appointments`. *)
Agreed(n) ==
    IF known[n] = 0 THEN None
    ELSE IF appointments[known[n]].generation = Members(n).since THEN appointments[known[n]] ELSE None
(* InSync.electors() *)
Electors(n) == IF Agreed(n) = None THEN Members(n).voters ELSE InSet(Agreed(n).sync)
(* InSync.required(), Policy.required() *)
Required(n) ==
    IF Members(n).rule # InSync THEN Members(n).voters
    ELSE Electors(n) \cup (IF "joiner-counted" \in Dropped THEN {} ELSE joining[n])
(* Membership.may_campaign(), InSync.may_campaign() *)
MayCampaign(n) ==
    /\ Counts(n)
    /\ (n \in Members(n).voters \/ Leaves(n))
    /\ Members(n).rule = InSync =>
         Guard("elected-from-set", IF Agreed(n) = None THEN TRUE ELSE Agreed(n).sync[n] = Members(n).dirs[n])

(* Peer.named_at: the entry of this leader by which the node got another directory. *)
NamedAt(l, n) ==
    LET mine == {k \in 2..Len(log[l].configs) :
                    /\ log[l].terms[log[l].configs[k].at] = term[l]
                    /\ log[l].configs[k].members.dirs[n] \notin {0, log[l].configs[k - 1].members.dirs[n]}}
    IN IF mine = {} THEN 0 ELSE log[l].configs[CHOOSE k \in mine : \A j \in mine : j <= k].at

---------------------------------------------------------------------------
Silent == [at |-> 0, dir |-> 0, sound |-> FALSE, got |-> 0]
NoReplies == [n \in Nodes |-> Silent]

Init ==
    /\ term = [n \in Nodes |-> 0]
    /\ vote = [n \in Nodes |-> None]
    /\ role = [n \in Nodes |-> "rests"]
    /\ votes = [n \in Nodes |-> {}]
    /\ log = [n \in Nodes |-> Fresh(n)]
    /\ synced = [n \in Nodes |-> End(Fresh(n))]
    /\ verified = [n \in Nodes |-> 0]
    /\ commit = [n \in Nodes |-> End(Fresh(n))]
    /\ cut = [n \in Nodes |-> {}]
    /\ dir = [n \in Nodes |-> 1]
    /\ acks = [n \in Nodes |-> NoReplies]
    /\ known = [n \in Nodes |-> 0]
    /\ joining = [n \in Nodes |-> {}]
    /\ appointments = <<>>
    /\ wishes = {}
    /\ reign = [t \in 1..TermMax |-> None]
    /\ asked = {}
    /\ ledger = <<0>> /\ ledgerIn = <<0>>
    /\ early = {}
    /\ crashes = 0 /\ wipes = 0 /\ changes = 0 /\ lossy = FALSE

(* Another term or another role: replies and votes are forgotten (Election._enter). *)
Rest(n) ==
    /\ role' = [role EXCEPT ![n] = "rests"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ acks' = [acks EXCEPT ![n] = NoReplies]
    /\ joining' = [joining EXCEPT ![n] = {}]

---------------------------------------------------------------------------
(* Elections: raft/election.py *)

Request(n, t) == [from |-> n, term |-> t, length |-> End(log[n]), last |-> EndTerm(log[n]), to |-> Members(n).voters,
                  names |-> Members(n).dirs]

(* campaign(pre=False): a new term, durable before the requests leave. Pre-votes change nothing and are left out. *)
Campaign(n) ==
    LET t == term[n] + 1 IN
    /\ t <= TermMax
    /\ Members(n).rule # InSync
    /\ MayCampaign(n)
    /\ term' = [term EXCEPT ![n] = t]
    /\ vote' = [vote EXCEPT ![n] = n]
    /\ role' = [role EXCEPT ![n] = "campaigns"]
    /\ votes' = [votes EXCEPT ![n] = {n}]
    /\ verified' = [verified EXCEPT ![n] = 0]
    /\ acks' = [acks EXCEPT ![n] = NoReplies]
    /\ joining' = [joining EXCEPT ![n] = {}]
    /\ asked' = IF Late THEN asked \cup {Request(n, t)} ELSE {}
    /\ UNCHANGED <<log, synced, commit, cut, dir, known, decided, reign, ledger, ledgerIn, early, bounds>>

Requests == IF Late THEN asked ELSE {Request(n, term[n]) : n \in {c \in Nodes : role[c] = "campaigns"}}

(* Election._count_votes(): the votes of a candidate suffice. *)
Wins(c, granted) == Members(c).rule # InSync /\ Elects(Members(c), granted)

NewReign(n, t) == [leader |-> n, log |-> log[n], commit |-> commit[n], times |-> IF reign[t] = None THEN 1 ELSE reign[t].times + 1]

(* on_vote_request(): granted if the candidate's log is at least as up to date, once in a term (Raft 5.2, 5.4.1). *)
Vote(n, request) ==
    LET c == request.from
        counted == role[c] = "campaigns" /\ term[c] = request.term
        won == Eager /\ counted /\ Wins(c, votes[c] \cup {n})
    IN
    /\ n # c /\ n \in request.to
    /\ request.term >= term[n]
    /\ MayVote(n, request.names)
    /\ Guard("log-compared", \/ request.last > EndTerm(log[n])
                             \/ request.last = EndTerm(log[n]) /\ request.length >= End(log[n]))
    /\ \/ request.term > term[n]
       \/ role[n] = "rests" /\ Guard("one-vote", vote[n] \in {None, c})
    /\ term' = [term EXCEPT ![n] = request.term]
    /\ vote' = [vote EXCEPT ![n] = c]
    /\ role' = [role EXCEPT ![n] = "rests", ![c] = IF won THEN "leads" ELSE @]
    /\ votes' = [votes EXCEPT ![n] = {}, ![c] = IF won THEN {} ELSE IF counted THEN @ \cup {n} ELSE @]
    /\ reign' = IF won THEN [reign EXCEPT ![request.term] = NewReign(c, request.term)] ELSE reign
    /\ verified' = [verified EXCEPT ![n] = IF request.term > term[n] THEN 0 ELSE @]
    /\ acks' = [acks EXCEPT ![n] = NoReplies]
    /\ joining' = [joining EXCEPT ![n] = {}]
    /\ UNCHANGED <<log, synced, commit, cut, dir, known, decided, asked, ledger, ledgerIn, early, bounds>>

(* become_leader() *)
BecomeLeader(n, t) ==
    /\ role' = [role EXCEPT ![n] = "leads"]
    /\ votes' = [votes EXCEPT ![n] = {}]
    /\ acks' = [acks EXCEPT ![n] = NoReplies]
    /\ joining' = [joining EXCEPT ![n] = {}]
    /\ reign' = [reign EXCEPT ![t] = NewReign(n, t)]

(* _count_votes(): a quorum of the candidate's own members voted for it. *)
Win(n) ==
    /\ role[n] = "campaigns"
    /\ Wins(n, votes[n])
    /\ BecomeLeader(n, term[n])
    /\ UNCHANGED <<term, vote, log, synced, verified, commit, cut, dir, known, decided, asked, ledger, ledgerIn, early, bounds>>

(* A higher term is heard, or leadership is given up. Neither enables anything that inaction does not: models leave it out, traces need it. *)
HearTerm(n, t) ==
    /\ t >= term[n]
    /\ term' = [term EXCEPT ![n] = t]
    /\ vote' = [vote EXCEPT ![n] = IF t > term[n] THEN None ELSE @]
    /\ verified' = [verified EXCEPT ![n] = IF t > term[n] THEN 0 ELSE @]
    /\ Rest(n)
    /\ UNCHANGED <<log, synced, commit, cut, dir, known, decided, history, bounds>>

---------------------------------------------------------------------------
(* Entries *)

(* A leader's own log: whatever it appends, it may send. *)
Write(n, written) ==
    /\ log' = [log EXCEPT ![n] = written]
    /\ reign' = [reign EXCEPT ![term[n]].log = written]

(* Core.appended(): clients' entries, or the entry with which a term starts. *)
AppendEntries(n, count) ==
    /\ role[n] = "leads"
    /\ End(log[n]) + count <= LengthMax
    /\ Write(n, Extended(log[n], term[n], count))
    /\ UNCHANGED <<term, vote, role, votes, synced, verified, commit, cut, dir, acks, known, joining, decided, asked, ledger, ledgerIn,
                   early, bounds>>

(* MemberChanges.propose(): one change at a time, after an entry of this term; an appointed master may take back a lost directory before, for
   no quorum of its rule follows from the members. Another minimum, which may come first too, is not modelled. A node must leave the in-sync set before it leaves the voters.
   What only keeps a change from stalling (a learner's lag, silent voters) is left out. *)
ChangeMembers(n, change) ==
    LET m == change.members
        leaves == change.kind \in {"demote", "remove", "return"}
        renamed == {p \in Nodes : m.dirs[p] \notin {0, Members(n).dirs[p]}}
        first == change.kind = "return" /\ Members(n).rule = InSync /\ (IF Agreed(n) = None THEN FALSE ELSE Agreed(n).epoch = term[n])
    IN /\ role[n] = "leads"
       /\ End(log[n]) < LengthMax /\ changes < ChangesMax
       /\ first \/ Guard("own-term-first", commit[n] > 0 /\ log[n].terms[commit[n]] = term[n])
       /\ first \/ Guard("one-change", ~Pending(n))
       /\ (Members(n).rule = InSync /\ leaves) => change.node \notin Required(n)
       /\ (change.kind = "rule" /\ Members(n).rule = InSync) =>
             (Agreed(n) # None /\ InSet(Agreed(n).sync) = Members(n).voters)
       /\ Write(n, Changed(log[n], term[n], m))
       /\ acks' = [acks EXCEPT ![n] = [p \in Nodes |-> IF p \in renamed THEN Silent ELSE @[p]]]
       /\ changes' = changes + 1
       /\ UNCHANGED <<term, vote, role, votes, synced, verified, commit, cut, dir, known, joining, decided, asked, ledger, ledgerIn, early,
                      crashes, wipes, lossy>>

(* Core._follow(), Follower.on_append(): a piece of the leader's log that ends with entry k. `from` is the entry before it. *)
Receive(n, t, from, k) ==
    LET sent == reign[t].log
        leader == reign[t].leader
        same == Common(log[n], sent)
        base == IF "entry-before-compared" \in Dropped THEN from ELSE same
        whole == k <= same
        cuts == ~whole /\ base < End(log[n])
        promised == IF t > term[n] THEN None ELSE vote[n]
        follows == t = term[n] /\ role[n] = "rests"
    IN /\ reign[t] # None /\ n # leader
       /\ t >= term[n]
       /\ ~(t = term[n] /\ role[n] = "leads")
       /\ k \in 0..End(sent)
       /\ Late \/ (role[leader] = "leads" /\ term[leader] = t)
       /\ Members(n).rule = InSync => promised \in {None, leader}
       /\ term' = [term EXCEPT ![n] = t]
       /\ vote' = [vote EXCEPT ![n] = IF promised = None /\ Members(n).rule # Majority THEN leader ELSE promised]
       /\ Rest(n)
       /\ log' = [log EXCEPT ![n] = IF whole THEN @ ELSE
                     IF base = same THEN Prefix(sent, k)
                     ELSE [terms |-> SubSeq(log[n].terms, 1, base) \o SubSeq(sent.terms, base + 1, k),
                           configs |-> Prefix(sent, k).configs]]
       /\ synced' = [synced EXCEPT ![n] = IF cuts THEN Min(@, base) ELSE @]
       /\ cut' = [cut EXCEPT ![n] = IF cuts /\ Rises THEN @ \cup {log[n]} ELSE @]
       /\ verified' = [verified EXCEPT ![n] = IF follows THEN Max(@, k) ELSE k]
       /\ UNCHANGED <<commit, dir, known, decided, history, bounds>>

(* LogState.follow_commit(): the leader's commit index counts as far as the log is verified. *)
MayFollow(n) ==
    IF term[n] = 0 \/ role[n] # "rests" THEN 0
    ELSE IF reign[term[n]] = None THEN 0
    ELSE Min(reign[term[n]].commit, IF "verified-first" \in Dropped THEN End(log[n]) ELSE verified[n])
FollowCommit(n, c) ==
    /\ c > commit[n] /\ c <= MayFollow(n)
    /\ commit' = [commit EXCEPT ![n] = c]
    /\ UNCHANGED <<term, vote, role, votes, log, synced, verified, cut, dir, acks, known, joining, decided, history, bounds>>

(* LogState.synced(): a sync has ended that covers the log up to entry k. *)
Sync(n, k) ==
    /\ k \in (synced[n] + 1)..End(log[n])
    /\ synced' = [synced EXCEPT ![n] = k]
    /\ cut' = [cut EXCEPT ![n] = IF k = End(log[n]) THEN {} ELSE @]
    /\ UNCHANGED <<term, vote, role, votes, log, verified, commit, dir, acks, known, joining, decided, history, bounds>>

(* Follower.accept(), Peer.accepted(): what a follower reports, and whether its copy counts. *)
Claim(n) == Min(IF Eager \/ "synced-first" \in Dropped THEN End(log[n]) ELSE synced[n], verified[n])
Reply(n, at) ==
    LET l == reign[term[n]].leader IN
    /\ term[n] > 0 /\ reign[term[n]] # None /\ role[n] = "rests"
    /\ n # l /\ role[l] = "leads" /\ term[l] = term[n]
    /\ at <= Claim(n)
    /\ LET old == acks[l][n]
           sound == Counts(n) /\ verified[n] >= NamedAt(l, n)
           most == IF old.dir = dir[n] THEN Max(old.at, at) ELSE at
           got == IF Early THEN verified[n] ELSE 0
       IN acks' = [acks EXCEPT ![l][n] = [at |-> most, dir |-> dir[n], sound |-> sound, got |-> got]]
    /\ synced' = IF Eager /\ "synced-first" \notin Dropped THEN [synced EXCEPT ![n] = Max(@, at)] ELSE synced
    /\ UNCHANGED <<term, vote, role, votes, log, verified, commit, cut, dir, known, joining, decided, history, bounds>>

(* Policy.reached(): the nodes whose copies of entry k count. A leader that is no voter does not count itself. *)
Holders(l, k) ==
    LET own == IF Eager \/ "own-copy-synced" \in Dropped THEN End(log[l]) ELSE synced[l] IN
    {n \in Nodes : IF n = l THEN own >= k ELSE acks[l][n].at >= k /\ Guard("provisional", acks[l][n].sound)}
(* InSync.may_commit() *)
EnoughCopies(l, k) ==
    LET set == Electors(l)
        others == {n \in Known(Members(l)) \ set : /\ n # l /\ acks[l][n].at >= Max(k, NamedAt(l, n))
                                                    /\ (acks[l][n].sound \/ n \in Members(l).returning)}
    IN Members(l).rule = InSync => Guard("minimum", Cardinality(set) + Cardinality(others) >= Minimum)

QuorumHolds(l, k) ==
    IF "in-sync-all" \in Dropped /\ Members(l).rule = InSync
    THEN IsMajority(Holders(l, k), Required(l))
    ELSE Suffices(Members(l), Holders(l, k), Required(l))

(* Leader.advance_commit() *)
Commit(l, k) ==
    /\ role[l] = "leads"
    /\ k \in (commit[l] + 1)..End(log[l])
    /\ Guard("own-term", log[l].terms[k] = term[l])
    /\ QuorumHolds(l, k)
    /\ EnoughCopies(l, k)
    /\ commit' = [commit EXCEPT ![l] = k]
    /\ synced' = IF Eager /\ l \in Required(l) /\ "own-copy-synced" \notin Dropped THEN [synced EXCEPT ![l] = Max(@, k)] ELSE synced
    /\ reign' = [reign EXCEPT ![term[l]].commit = k]
    /\ ledger' = IF k <= Len(ledger) THEN ledger ELSE ledger \o SubSeq(log[l].terms, Len(ledger) + 1, k)
    /\ ledgerIn' = IF k <= Len(ledger) THEN ledgerIn ELSE ledgerIn \o [i \in 1..(k - Len(ledger)) |-> term[l]]
    /\ UNCHANGED <<term, vote, role, votes, log, verified, cut, dir, acks, known, joining, decided, asked, early, bounds>>

(* Leader.advance_held(), class `memory`: a quorum has received the entry. Nothing but an answer rests on it. *)
AckMemory(l, k) ==
    LET holders == {n \in Nodes : n = l \/ (acks[l][n].sound /\ acks[l][n].got >= k)} IN
    /\ Early /\ role[l] = "leads"
    /\ k \in (commit[l] + 1)..End(log[l])
    /\ log[l].terms[k] = term[l]
    /\ "held-by-quorum" \in Dropped \/ Suffices(Members(l), holders, Required(l))
    /\ early' = early \cup {[class |-> "memory", node |-> l, at |-> k, term |-> term[l]]}
    /\ UNCHANGED <<replicas, decided, reign, asked, ledger, ledgerIn, bounds>>

(* Class `master`: the master's own disk, once an entry of its epoch is confirmed (raft/policy.py, InSync.early_claim). *)
AckAlone(l, k) ==
    /\ Early /\ role[l] = "leads" /\ Members(l).rule = InSync
    /\ k \in (commit[l] + 1)..End(log[l])
    /\ Guard("master-synced", k <= synced[l])
    /\ Guard("epoch-confirmed", log[l].terms[commit[l]] = term[l])
    /\ early' = early \cup {[class |-> "master", node |-> l, at |-> k, term |-> term[l]]}
    /\ UNCHANGED <<replicas, decided, reign, asked, ledger, ledgerIn, bounds>>

---------------------------------------------------------------------------
(* Crashes and lost directories: storage/ *)

(* A process ends and starts again with `left`, the log that recovery finds, which is durable then. *)
Restart(n, left, c) ==
    /\ Common(left, log[n]) >= synced[n] \/ \E old \in cut[n] : Common(left, old) >= synced[n]
    /\ left = Prefix(log[n], End(left)) \/ \E old \in cut[n] : left = Prefix(old, End(left))
    /\ End(left) >= synced[n]
    /\ c <= Min(commit[n], End(left))
    /\ log' = [log EXCEPT ![n] = left]
    /\ synced' = [synced EXCEPT ![n] = End(left)]
    /\ cut' = [cut EXCEPT ![n] = {}]
    /\ commit' = [commit EXCEPT ![n] = c]
    /\ verified' = [verified EXCEPT ![n] = 0]
    /\ known' = [known EXCEPT ![n] = 0]
    /\ vote' = [vote EXCEPT ![n] = IF "vote-durable" \in Dropped THEN None ELSE @]
    /\ Rest(n)
    /\ crashes' = crashes + 1
    /\ lossy' = (lossy \/ left # log[n])
    /\ UNCHANGED <<term, dir, decided, history, wipes, changes>>

Crash(n) ==
    /\ crashes < CrashesMax
    /\ \E left \in {Prefix(log[n], k) : k \in synced[n]..End(log[n])} \cup
                   UNION {{Prefix(old, k) : k \in synced[n]..End(old)} : old \in cut[n]} :
          Restart(n, left, Min(commit[n], Min(1, End(left))))

(* The directory is lost and a new one takes its place: it remembers neither entries nor votes. Every founder writes the founding entry
   itself (docs/decisions/2026-11-21-bootstrap.md). *)
Wipe(n) ==
    /\ wipes < WipesMax
    /\ dir' = [dir EXCEPT ![n] = @ + 1]
    /\ log' = [log EXCEPT ![n] = Fresh(n)]
    /\ term' = [term EXCEPT ![n] = 0]
    /\ vote' = [vote EXCEPT ![n] = None]
    /\ synced' = [synced EXCEPT ![n] = End(Fresh(n))]
    /\ verified' = [verified EXCEPT ![n] = 0]
    /\ commit' = [commit EXCEPT ![n] = End(Fresh(n))]
    /\ cut' = [cut EXCEPT ![n] = {}]
    /\ known' = [known EXCEPT ![n] = 0]
    /\ Rest(n)
    /\ wipes' = wipes + 1 /\ lossy' = TRUE
    /\ UNCHANGED <<decided, history, crashes, changes>>

---------------------------------------------------------------------------
(* HA groups: raft/isr.py, raft/isr_review.py, and the controller *)

Present == IF appointments = <<>> THEN None ELSE Last(appointments)
Send(ask) == wishes' = wishes \cup {ask}

(* Isr.request_master(): for this replica, or for the target of a handover. *)
ElectionRequest(n, m) ==
    [kind |-> "elect", node |-> m, directory |-> Members(n).dirs[m], generation |-> Members(n).since,
     epoch |-> IF Agreed(n) = None THEN 0 ELSE Agreed(n).epoch, term |-> term[n],
     voters |-> [p \in Nodes |-> IF p \in Members(n).voters THEN Members(n).dirs[p] ELSE 0],
     begun |-> EndTerm(log[n]) > log[n].terms[Members(n).since]]
AskMaster(n, m) ==
    /\ Members(n).rule = InSync
    /\ Members(n).since <= synced[n]
    /\ role[n] = "leads" \/ (m = n /\ MayCampaign(n))
    /\ Send(ElectionRequest(n, m))
    /\ UNCHANGED <<replicas, appointments, history, bounds>>

(* IsrReview.may_join(): it has everything that is committed, and an entry of this epoch, on stable storage. *)
MayJoin(l, n) ==
    /\ n \in Members(l).voters
    /\ acks[l][n].sound
    /\ (~Pending(l) \/ n \in Before(l).voters)
    /\ Guard("joins-complete", /\ acks[l][n].at >= commit[l] /\ acks[l][n].at > 0
                               /\ log[l].terms[acks[l][n].at] = term[l])

(* IsrReview.review(): the master asks for another set; which members lag, time decides. *)
AskSet(l, wanted) ==
    LET agreed == Agreed(l)
        new == {n \in wanted : agreed.sync[n] = 0}
    IN /\ role[l] = "leads" /\ Members(l).rule = InSync
       /\ agreed # None /\ agreed.epoch = term[l] /\ agreed.master = l
       /\ l \in wanted
       /\ \A n \in new : MayJoin(l, n)
       /\ joining' = [joining EXCEPT ![l] = @ \cup new]
       /\ Send([kind |-> "alter", node |-> l, generation |-> agreed.generation, epoch |-> agreed.epoch, version |-> agreed.version,
                sync |-> [n \in Nodes |-> IF n \in wanted THEN Members(l).dirs[n] ELSE 0]])
       /\ UNCHANGED <<term, vote, role, votes, log, synced, verified, commit, cut, dir, acks, known, appointments, history, bounds>>

(* The controller decides one request after the other. Requests that can never be granted any more are forgotten. *)
Decide(ask) ==
    /\ ask \in wishes
    /\ Len(appointments) < DecisionsMax
    /\ ~Refuses(Present, ask)
    /\ LET made == Decision(Present, ask)
       IN /\ appointments' = Append(appointments, made)
          /\ wishes' = {w \in wishes \ {ask} : ~Void(made, w)}
    /\ UNCHANGED <<replicas, history, bounds>>

(* Isr.learn(): decisions arrive late and in order; some never arrive. *)
Learn(n, k) ==
    /\ k \in (known[n] + 1)..Len(appointments)
    /\ known' = [known EXCEPT ![n] = k]
    /\ joining' = [joining EXCEPT ![n] = {}]
    /\ UNCHANGED <<term, vote, role, votes, log, synced, verified, commit, cut, dir, acks, decided, history, bounds>>

(* Election.take_office() *)
TakeOffice(n) ==
    LET agreed == Agreed(n) IN
    /\ Members(n).rule = InSync
    /\ agreed # None
    /\ agreed.master = n
    /\ agreed.epoch > term[n] \/ ("epoch-once" \in Dropped /\ agreed.epoch = term[n] /\ role[n] = "rests")
    /\ agreed.epoch <= TermMax
    /\ MayCampaign(n)
    /\ term' = [term EXCEPT ![n] = agreed.epoch]
    /\ vote' = [vote EXCEPT ![n] = n]
    /\ BecomeLeader(n, agreed.epoch)
    /\ UNCHANGED <<log, synced, verified, commit, cut, dir, known, decided, asked, ledger, ledgerIn, early, bounds>>

=============================================================================
