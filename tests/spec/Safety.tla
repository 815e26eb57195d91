------------------------------- MODULE Safety -------------------------------
(* What must hold in every state (docs/architecture.md, Invariants), for models and for traces. *)
EXTENDS Replicas

(* I1: a term has one leader, once. *)
ElectionSafety == \A t \in DOMAIN reign : reign[t] # None => reign[t].times = 1

(* I2: equal index and term mean equal history. *)
LogMatching == \A a, b \in Nodes : \A k \in 1..Min(End(log[a]), End(log[b])) :
    log[a].terms[k] = log[b].terms[k] => Prefix(log[a], k) = Prefix(log[b], k)

(* I3: whoever leads has everything that was committed in its term or before. *)
LeaderCompleteness == \A n \in Nodes : role[n] = "leads" => \A k \in 1..Len(ledger) :
    ledgerIn[k] < term[n] => k <= End(log[n]) /\ log[n].terms[k] = ledger[k]

(* I3, I4: whatever any replica calls committed is the same everywhere and for ever. *)
StateMachineSafety == \A n \in Nodes :
    /\ commit[n] <= End(log[n])
    /\ commit[n] <= Len(ledger)
    /\ MayFollow(n) <= Len(ledger)
    /\ \A k \in 1..Max(commit[n], MayFollow(n)) : log[n].terms[k] = ledger[k]

(* I4 rests on these relations (LogState.check). *)
Indexes == \A n \in Nodes : synced[n] <= End(log[n]) /\ verified[n] <= End(log[n])

(* A leader changes its members when no other change is in flight, and after an entry of its term. Only the return of a lost directory to a
   group of the rule in-sync may come first. *)
Back(n, k) == LET now == log[n].configs[k].members
                  before == log[n].configs[k - 1].members
              IN now.rule = InSync /\ Known(now) = Known(before) /\ now.dirs # before.dirs
OneChange == \A n \in Nodes : role[n] = "leads" =>
    LET open == {k \in DOMAIN log[n].configs : log[n].configs[k].at > commit[n]}
        own == {k \in open : log[n].terms[log[n].configs[k].at] = term[n] /\ ~Back(n, k)}
    IN \A k \in own : (\A j \in open : j >= k) /\ commit[n] > 0 /\ log[n].terms[commit[n]] = term[n]

(* HA: each member of the present in-sync set could be elected, so it has everything that was committed on stable storage. The set elects
   nobody any more once a later rule is committed. *)
Ended(generation) == \E n \in Nodes : \E k \in DOMAIN log[n].configs :
    LET c == log[n].configs[k] IN c.at > generation /\ c.at <= commit[n] /\ c.members.since # generation
InSyncHolds ==
    LET now == Present IN
    (now # None /\ ~Ended(now.generation)) =>
        \A n \in InSet(now.sync) : now.sync[n] = dir[n] =>
            Len(ledger) <= synced[n] /\ \A k \in 1..Len(ledger) : log[n].terms[k] = ledger[k]

(* Epochs of the controller only grow, and each has one master. *)
Epochs == \A k \in 2..Len(appointments) :
    LET a == appointments[k - 1] b == appointments[k] IN
    /\ b.epoch >= a.epoch /\ b.version > a.version /\ b.generation >= a.generation
    /\ b.epoch = a.epoch => b.master = a.master

(* Class `memory`: without a crash that loses entries, every later leader has the entry. *)
EarlySurvives == ~lossy => \A e \in early : e.class = "memory" =>
    \A n \in Nodes : (role[n] = "leads" /\ term[n] > e.term) => e.at <= End(log[n]) /\ log[n].terms[e.at] = e.term

(* Class `master`: the entry is on the master's disk until it follows another one; its epoch has confirmed something. *)
AloneSurvives == \A e \in early : e.class = "master" =>
    /\ \E k \in 1..Len(ledger) : ledger[k] = e.term
    /\ \/ term[e.node] > e.term
       \/ dir[e.node] > 1
       \/ (e.at <= synced[e.node] /\ log[e.node].terms[e.at] = e.term)

(* I4, in the step that commits: the entry is on stable storage on a quorum of the leader's members, in the directories by which they are
   known, whatever was told. A copy in a directory that was lost since it was reported counts like one on a node that is down; and a follower
   that has heard of a later term may have cut it. *)
Copies(l, k) == {n \in Nodes :
    LET named == Members(l).dirs[n] IN
    \/ dir[n] = named /\ synced'[n] >= k /\ log[n].terms[k] = log[l].terms[k]
    \/ dir[n] > named /\ acks[l][n].dir = named
    \/ n # l /\ term[n] > term[l]}
CommitIsDurable == [][
    \A l \in Nodes : (role[l] = "leads" /\ role'[l] = "leads" /\ commit'[l] > commit[l]) =>
        LET m == Members(l)
            copies == Copies(l, commit'[l])
        IN /\ Suffices(m, copies, IF m.rule = InSync THEN Electors(l) ELSE m.voters)
           /\ m.rule = InSync => Cardinality(copies \cap Known(m)) >= Minimum
    ]_vars

(* A commit index never falls while the process lives. *)
CommitNeverFalls == [][\A n \in Nodes : commit'[n] < commit[n] => crashes' > crashes \/ wipes' > wipes]_vars

(* Term and vote are promises for ever, as long as the directory lives. *)
Promises == [][\A n \in Nodes : dir'[n] = dir[n] =>
    (term'[n] >= term[n]) /\ (term'[n] = term[n] => vote[n] \in {None, vote'[n]})]_vars
=============================================================================
