"""Sentences in other languages, put together from parts that fit each other, to be translated into English."""

import random

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")

# Who, does what, when or where: every row of one column fits every row of the others.
PARTS: dict[str, tuple[str, str, str]] = {
    "German": (
        "Die Regierung|Mein Nachbar|Die alte Frau|Der Minister|Das Unternehmen|Die Polizei|Unser Lehrer|Der junge Arzt|"
        "Die Stadt|Der Verein|Das Museum|Eine Sprecherin|Der Bürgermeister|Die Zeitung",
        "hat einen neuen Plan vorgestellt|will mehr Geld für Schulen ausgeben|hat lange auf eine Antwort gewartet|"
        "muss den Vertrag noch einmal prüfen|hat gestern einen Brief erhalten|sucht dringend neue Mitarbeiter|"
        "hat die Entscheidung verteidigt|möchte das Haus am Fluss verkaufen|hat sich für den Fehler entschuldigt|"
        "erwartet in diesem Jahr weniger Besucher|hat drei Fragen gestellt|kann die Kosten nicht allein tragen",
        "obwohl das Wetter schlecht war|weil die Preise gestiegen sind|bevor der Winter beginnt|wie am Montag bekannt wurde|"
        "ohne die Gründe zu nennen|damit alle Kinder lernen können|seit die Brücke geschlossen ist|nachdem viele Bürger "
        "protestiert hatten",
    ),
    "French": (
        "Le gouvernement|Ma voisine|Le vieux professeur|La ministre|Cette entreprise|La police|Notre médecin|Le musée|"
        "La ville|Le maire|Une journaliste|Le directeur",
        "a présenté un nouveau projet|veut dépenser plus d'argent pour les écoles|attend encore une réponse|"
        "doit examiner le contrat|a reçu une longue lettre|cherche de nouveaux employés|a défendu cette décision|"
        "voudrait vendre la maison près de la rivière|a demandé pardon pour cette erreur|ne peut pas payer tous les frais",
        "malgré le mauvais temps|parce que les prix ont augmenté|avant le début de l'hiver|selon un rapport publié lundi|"
        "sans donner de raisons|depuis que le pont est fermé|après plusieurs semaines de discussion",
    ),
    "Spanish": (
        "El gobierno|Mi vecina|El viejo profesor|La ministra|Esta empresa|La policía|Nuestro médico|El museo|La ciudad|"
        "El alcalde|Una periodista|El director",
        "ha presentado un nuevo plan|quiere gastar más dinero en las escuelas|todavía espera una respuesta|"
        "debe revisar el contrato|recibió una carta muy larga|busca nuevos empleados|defendió la decisión|"
        "quiere vender la casa cerca del río|pidió perdón por el error|no puede pagar todos los gastos",
        "a pesar del mal tiempo|porque los precios han subido|antes de que empiece el invierno|según un informe del lunes|"
        "sin explicar los motivos|desde que el puente está cerrado|después de varias semanas de debate",
    ),
    "Italian": (
        "Il governo|La mia vicina|Il vecchio professore|La ministra|Questa azienda|La polizia|Il nostro medico|Il museo|"
        "La città|Il sindaco|Una giornalista",
        "ha presentato un nuovo progetto|vuole spendere più soldi per le scuole|aspetta ancora una risposta|"
        "deve controllare il contratto|ha ricevuto una lunga lettera|cerca nuovi dipendenti|ha difeso la decisione|"
        "vorrebbe vendere la casa vicino al fiume|ha chiesto scusa per l'errore",
        "nonostante il brutto tempo|perché i prezzi sono aumentati|prima che cominci l'inverno|"
        "secondo un rapporto di lunedì|senza spiegare i motivi|da quando il ponte è chiuso",
    ),
}


def sentence(rng: random.Random) -> tuple[str, str]:
    """(language, one or two sentences in it); German half of the time."""
    language = "German" if rng.random() < 0.5 else rng.choice(sorted(PARTS))
    who, what, when = (column.split("|") for column in PARTS[language])
    comma = "," if language == "German" else ""
    pairs = zip(rng.sample(who, 2), rng.sample(what, 2), rng.sample(when, 2), strict=True)
    both = [f"{a} {b}{comma} {c}." if rng.random() < 0.7 else f"{a} {b}." for a, b, c in pairs]
    return language, " ".join(both[: rng.choice([1, 1, 2])])
