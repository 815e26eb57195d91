------------------------------- MODULE Model -------------------------------
(* All behaviours of a bounded group, for TLC.

   With Eager a model takes together what only enables other steps, so that fewer states remain, and loses no violation:
     a candidate leads with the vote that suffices, because a leader that does nothing yet is like a candidate;
     a follower syncs when it replies, and a leader when it commits: a sync that nobody hears of enables nothing, and a crash keeps any
     part of what is not synced.
   A follower moves its commit index only where members change, because only there something rests on it (StateMachineSafety checks what it
   may commit anyway). Steps that disable only (HearTerm) are left out. *)
EXTENDS Safety, TLC

CONSTANTS
    Kinds,       \* the kinds of changes of members that happen
    Alternate    \* whether one node gets votes in odd terms only, and another one in even terms: a long story with few states

MembersChange == ChangesMax > 0
Odd == CHOOSE n \in Nodes : TRUE
Turn(t) == IF t % 2 = 1 THEN Odd ELSE CHOOSE n \in Nodes \ {Odd} : TRUE
(* It leads the epoch that it was appointed for: it asks for another set, not for another epoch. *)
Granted(n) == role[n] = "leads" /\ Agreed(n) # None /\ Agreed(n).epoch = term[n]

Next ==
    \/ \E n \in Nodes :
        \/ Campaign(n)
        \/ \E r \in Requests : (Alternate => r.from = Turn(r.term)) /\ Vote(n, r)
        \/ Win(n)
        \/ AppendEntries(n, 1)
        \/ /\ MembersChange /\ role[n] = "leads"
           /\ \E change \in Successors(Members(n), End(log[n]) + 1, dir) : change.kind \in Kinds /\ ChangeMembers(n, change)
        \/ \E t \in 1..TermMax :
             /\ reign[t] # None
             /\ LET same == Common(log[n], reign[t].log) IN
                \E from \in IF "entry-before-compared" \in Dropped THEN same..End(log[n]) ELSE {same} :
                \E k \in {from, from + 1} : Receive(n, t, from, k)
        \/ MembersChange /\ FollowCommit(n, MayFollow(n))
        \/ (Early \/ MembersChange) /\ Sync(n, End(log[n]))
        \/ Reply(n, Claim(n))
        \/ \E k \in 1..LengthMax : Commit(n, k)
        \/ \E k \in 1..LengthMax : AckMemory(n, k) \/ AckAlone(n, k)
        \/ Crash(n)
        \/ Wipe(n)
        \/ Cardinality(wishes) < WishesMax /\ ~Granted(n) /\ AskMaster(n, n)
        \/ Cardinality(wishes) < WishesMax /\ \E wanted \in SUBSET Nodes :
             (WishesMax > 1 \/ wanted # Electors(n)) /\ AskSet(n, wanted)
        \/ \E k \in 1..Len(appointments) : Learn(n, k)
        \/ TakeOffice(n)
    \/ \E ask \in wishes : Decide(ask)

Spec == Init /\ [][Next]_vars

(* Which nodes are alike, and which parts of a state matter: without late messages the log of a leader that is gone has no effect. *)
Alike == Permutations(Founders) \cup Permutations(Nodes \ Founders)
Reigns == [t \in DOMAIN reign |->
    IF reign[t] = None THEN None
    ELSE IF Late \/ (role[reign[t].leader] = "leads" /\ term[reign[t].leader] = t) THEN reign[t]
    ELSE [reign[t] EXCEPT !.log = Empty]]
View == <<replicas, decided, Reigns, asked, ledger, ledgerIn, early, bounds>>
=============================================================================
